"""The same codec on NumPy and on PyTorch: the same bits. Tensors are on the CPU here, so that no GPU is needed.

What only a GPU does, other orders of sums above all, is in test_cuda.py.
"""

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedmpdd.codecs import EDEN, MPDD, QSGD, Batch, Codec, LpProj, Peaks, SAFedLora, SignSGD, TopK
from fedmpdd.codecs.backends import HOST
from fedmpdd.codecs.device import DeviceBackend
from fedmpdd.directions import Key
from fedmpdd.errors import CodecError, GradientError
from fedmpdd.uplink import ErrorFeedback
from tests.codecs.table import CODECS_UNDER_TEST, D, label
from tests.conftest import gaussian

KEYS = [Key(1), Key(2), Key(2, 1)]
MATRIX_PRODUCTS = (SAFedLora, LpProj)  # which no two libraries round alike
every_codec = pytest.mark.parametrize("codec", CODECS_UNDER_TEST, ids=label)


def device_batch(codec: Codec, gradients: NDArray[np.float32], keys: list[Key]) -> Batch:
    """What `encode_batch` makes of a tensor on a GPU, made of one on the CPU."""
    backend, tensor = DeviceBackend(torch.device("cpu")), torch.from_numpy(gradients)
    columns = codec._settled(backend, tensor, keys, codec._encode(backend, tensor, keys))
    return Batch(codec, gradients.shape[1], tuple(keys if codec.needs_key else [Key(0, 0)] * len(keys)), columns)


@every_codec
def test_updates_are_those_of_the_cpu(codec: Codec) -> None:
    gradients = gaussian(3, D)
    gradients[1] **= 3
    gradients[2] = 0
    ours, theirs = device_batch(codec, gradients, KEYS), codec.encode_batch(gradients, KEYS)
    if isinstance(codec, MATRIX_PRODUCTS):
        for mine, expected in zip(ours, theirs, strict=True):
            decoded, same = (codec.decode_mean([update]) for update in (mine, expected))
            assert np.allclose(decoded, same, rtol=1e-5, atol=1e-5 * float(np.abs(same).max()))
        return
    assert ours.updates() == theirs.updates()


@every_codec
@pytest.mark.parametrize("weights", [None, [1.0, 0.0, 2.5]])
def test_means_are_those_of_the_cpu(codec: Codec, weights: list[float] | None) -> None:
    updates = codec.encode(gaussian(3, D), KEYS)
    backend = DeviceBackend(torch.device("cpu"))
    batch = Batch.of(updates)
    columns = tuple(backend.like(HOST.stacked(rows).astype(np.int64 if rows[0].dtype == np.uint32 else rows[0].dtype))
                    for rows in batch.columns)  # fmt: skip
    there: Any = codec.decode_batch(Batch(codec, D, batch.keys, columns), weights)
    assert isinstance(there, torch.Tensor)
    expected = codec.decode_mean(updates, weights)
    if isinstance(codec, MATRIX_PRODUCTS):
        assert np.allclose(there.numpy(), expected, rtol=1e-5, atol=1e-5 * float(np.abs(expected).max()))
        return
    assert there.numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("codec", [MPDD(40, bits=1), Peaks(5, 8), QSGD(4), SignSGD(), EDEN(2)], ids=label)
def test_a_bit_that_the_order_of_a_sum_decides_is_the_cpus(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """With sums that are off by far more than an order makes them, every update is in doubt, and all are the CPU's."""
    gradients = gaussian(3, D)
    exact = DeviceBackend.moments

    def off(self: DeviceBackend, rows: torch.Tensor) -> torch.Tensor:
        return exact(self, rows) * (1 + 1e-5)

    monkeypatch.setattr(DeviceBackend, "moments", off)
    monkeypatch.setattr(
        DeviceBackend, "mean", lambda self, rows, of=lambda row: row: of(rows).double().mean(dim=1) * (1 + 1e-5)
    )
    monkeypatch.setattr("fedmpdd.codecs.device.ORDER_ERROR", 1e-3)
    assert device_batch(codec, gradients, KEYS).updates() == codec.encode(gradients, KEYS)


@pytest.mark.parametrize("rank_of_gradient", [0, 1, 2])
def test_sa_fedlora_keeps_a_gradient_of_lower_rank_whole(rank_of_gradient: int) -> None:
    """One client's image makes a gradient of rank one, a dead layer one of rank zero: columns that do not differ."""
    codec = SAFedLora(rank=3, warmup=0).for_shapes([(20, 20)])
    g = (gaussian(20, 3)[:, :rank_of_gradient] @ gaussian(3, 20)[:rank_of_gradient]).reshape(1, 400)
    decoded = codec.decode_mean(device_batch(codec, g, KEYS[:1]).updates())
    assert np.allclose(decoded, g[0], rtol=1e-5, atol=1e-6)
    assert np.allclose(decoded, codec.decode_mean(codec.encode(g, KEYS[:1])), rtol=1e-5, atol=1e-6)


@every_codec
def test_what_is_not_finite_is_refused(codec: Codec) -> None:
    g = gaussian(3, D)
    g[1, 3] = math.nan
    with pytest.raises(GradientError, match=r"gradients\[1, 3\] is nan"):
        device_batch(codec, g, KEYS)


@pytest.mark.parametrize("codec", [MPDD(5), MPDD(5, 4), MPDD(5, 1), Peaks(5, 4), EDEN(1), QSGD(8)], ids=label)
def test_what_is_too_large_is_refused(codec: Codec) -> None:
    with pytest.raises(CodecError, match="too large; scale or clip"):
        device_batch(codec, np.full((2, D), 3e38, dtype=np.float32), KEYS[:2])


def test_error_feedback_remembers_what_the_codec_left_out() -> None:
    class OnDevice(TopK):
        def encode_batch(self, gradients: Any, keys: Any) -> Batch:
            return device_batch(self, gradients.numpy(), list(keys))

    here, there = ErrorFeedback(TopK(k=30)), ErrorFeedback(OnDevice(k=30))
    for clients in ([0, 1, 2], [2, 5, 0], [1, 2, 5]):
        g = gaussian(3, 400)
        expected = here.encode(g, KEYS, clients).decode()
        decoded: Any = there.encode(torch.from_numpy(g), KEYS, clients).decode()
        assert decoded.numpy().tobytes() == expected.tobytes()
    assert {client: vector.tobytes() for client, vector in there.state().items()} == {
        client: vector.tobytes() for client, vector in here.state().items()
    }
    again = ErrorFeedback(OnDevice(k=30))
    again.load(there.state())
    tensor = torch.from_numpy(gaussian(3, 400))
    first, second = (memory.encode(tensor, KEYS, [0, 1, 2]).decode() for memory in (there, again))
    assert torch.equal(first, second)
