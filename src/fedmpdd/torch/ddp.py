"""A communication hook of DistributedDataParallel: workers exchange frames instead of gradients."""

from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from fedmpdd.codecs import Codec
from fedmpdd.directions import Key, check_key, derive_seed
from fedmpdd.torch.parameters import check_sends_gradients, flatten
from fedmpdd.uplink import ErrorFeedback, Uplink

if TYPE_CHECKING:  # PyTorch has no type for its bucket, and insists on this one in the signature of a hook
    GradBucket = Any
else:
    GradBucket = dist.GradBucket


def ddp_hook(
    codec: Codec, *, seed: int = 0, error_feedback: bool = False, group: dist.ProcessGroup | None = None
) -> "DDPHook":
    """Return a hook with which workers exchange updates of a codec: `model.register_comm_hook(None, hook)`.

    Every worker encodes the gradients of a bucket, all gather the frames, and each decodes the same mean, to the same
    bits. Keys follow from the seed, the step, the bucket and the rank, and are not sent.

    Args:
        codec: of every bucket. m counts per bucket, and hadamard directions are no more than a bucket has coordinates;
            `bucket_cap_mb` of DistributedDataParallel says how large one is.
        seed: of all directions, the same on every worker.
        error_feedback: what an update left out is added to the next gradient of the bucket. For codecs such as Top-k.
            PyTorch parts its buckets anew after the first step, and what was left out of that one is lost.
        group: of processes; all of them by default.

    Returns:
        The hook. Its `bytes_sent` says how many bytes this worker has sent so far.

    Example:
        >>> model = torch.nn.parallel.DistributedDataParallel(net)
        >>> model.register_comm_hook(None, ddp_hook(MPDD(m=400, bits=1, family="hadamard")))

    """
    check_sends_gradients(codec)
    return DDPHook(codec, check_key(seed).seed, error_feedback, group)


class DDPHook:
    """The state of one worker's hook: uplinks by bucket, and how many steps were taken."""

    def __init__(self, codec: Codec, seed: int, error_feedback: bool, group: dist.ProcessGroup | None) -> None:
        self._codec, self._seed, self._error_feedback, self._group = codec, seed, error_feedback, group
        self.__name__ = self.__qualname__ = "ddp_hook"  # PyTorch takes a hook for a function, and logs its name
        self._uplinks: dict[tuple[int, tuple[torch.Size, ...]], Uplink] = {}
        self._step = -1
        self.bytes_sent = 0

    def __call__(self, state: object, bucket: GradBucket) -> Future[Tensor]:
        if bucket.index() == 0:
            self._step += 1
        uplink, gradient = self._uplink_of(bucket), bucket.buffer()
        workers, rank = dist.get_world_size(self._group), dist.get_rank(self._group)
        seed = derive_seed(self._seed, self._step, bucket.index())
        keys = [Key(seed, worker) for worker in range(workers)]
        row = flatten([gradient])[None]
        uploads = uplink.encode(self._step, row if row.is_cuda else row.cpu().numpy(), keys[rank : rank + 1], [0])
        session = uplink.session(self._step)
        frame = session.pack(uploads.batch.updates()[0])
        self.bytes_sent += len(frame)
        sent = torch.frombuffer(bytearray(frame), dtype=torch.uint8).to(gradient.device)
        received = [torch.empty_like(sent) for _ in range(workers)]
        work: Any = dist.all_gather(received, sent, group=self._group, async_op=True)

        def decode(_: object) -> Tensor:
            assigned = keys if session.assigns_key else [None] * workers
            frames = (one.cpu().numpy().tobytes() for one in received)
            updates = [session.unpack(frame, key) for frame, key in zip(frames, assigned, strict=True)]
            estimate = uplink.mean(uplink.uploads_of(updates)).estimate()
            return cast(Tensor, gradient.copy_(torch.as_tensor(estimate)))

        return cast(Future[Tensor], work.get_future().then(decode))

    def _uplink_of(self, bucket: GradBucket) -> Uplink:
        shapes = tuple(parameter.shape for parameter in bucket.parameters())
        name = bucket.index(), shapes
        if name not in self._uplinks:
            codec = self._codec.for_shapes([tuple(shape) for shape in shapes])
            memory = ErrorFeedback(codec) if self._error_feedback else None
            self._uplinks[name] = Uplink(codec, bucket.buffer().numel(), "partitioned", memory=memory)
        return self._uplinks[name]
