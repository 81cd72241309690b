"""The contract that FedMPDD and every rival keep."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from fedmpdd.directions import MAX_M, Key, check_gradients, check_key
from fedmpdd.errors import CodecError, ContentError, KeyRangeError

if TYPE_CHECKING:  # PyTorch is there where tensors come in, and is not needed before
    from torch import Tensor

Float32 = NDArray[np.float32]
Arrays = tuple[NDArray[Any], ...]  # what an update consists of: one array per section of its codec

NO_KEY = Key(0, 0)  # of updates whose codec needs none to decode

# The largest coordinate that one update may stand for where decoding adds up float32. It is half of what float32 holds:
# a weighted mean of such updates is no larger, and the other half is for what roundings add.
LARGEST_COORDINATE = 2.0**127


class Section(NamedTuple):
    """One array of an update: how many values of which little-endian type."""

    name: str
    dtype: str
    length: int

    @property
    def nbytes(self) -> int:
        """Length of the section in bytes."""
        return self.length * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, eq=False, slots=True)
class Update:
    """What one client uploads in one round. It has exactly one byte representation: see fedmpdd.wire.frames.

    The key is NO_KEY where decoding needs none, whatever key it was encoded with: a seed that only served to round, or
    to add noise, must not travel with what it hides.
    """

    codec: "Codec"
    d: int
    key: Key
    arrays: Arrays

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Update):
            return NotImplemented
        return (self.codec, self.d, self.key) == (other.codec, other.d, other.key) and all(
            mine.tobytes() == theirs.tobytes() for mine, theirs in zip(self.arrays, other.arrays, strict=True)
        )

    def __hash__(self) -> int:
        return hash((self.codec, self.d, self.key, *(array.tobytes() for array in self.arrays)))


class Parameters(NamedTuple):
    """A codec's parameters as a frame carries them: two bytes and a 32-bit number that is not 0."""

    first: int = 0
    second: int = 0
    size: int = 1


class Codec(ABC):
    """How a gradient becomes an update, and updates become an estimate of their mean gradient.

    A codec is immutable and has no state: the same gradients and keys give the same updates. Its parameters are its
    dataclass fields; two codecs of equal parameters are equal.
    """

    name: ClassVar[str]
    code: ClassVar[int]  # its number on the wire
    unbiased: ClassVar[bool]
    needs_key: ClassVar[bool] = True  # whether decoding needs the key, so that a frame must carry its seed
    variance_is_bound: ClassVar[bool] = False  # whether `variance` is the largest possible, not the exact one
    self_contained: ClassVar[bool] = True  # whether a frame's header says enough to rebuild the codec
    from_losses: ClassVar[bool] = False  # whether clients send differences of losses instead of encoding gradients
    noise_from_key: ClassVar[bool] = False  # whether its noise can be repeated by whoever knows the key
    adds_up: ClassVar[bool] = False  # whether the scalars of updates with one key add up to those of their mean

    @abstractmethod
    def check(self, d: int, slot: int = 0) -> None:
        """Raise InputError if gradients of d coordinates cannot be encoded in that slot."""

    @abstractmethod
    def sections(self, d: int) -> tuple[Section, ...]:
        """Return the arrays that an update of a gradient of d coordinates consists of."""

    @abstractmethod
    def check_content(self, arrays: Arrays, d: int) -> None:
        """Raise ContentError if the arrays of `sections(d)` hold what this codec never writes."""

    @abstractmethod
    def parameters(self) -> Parameters:
        """Return what a frame must carry to rebuild this codec."""

    @classmethod
    def from_parameters(cls, parameters: Parameters) -> Self:
        """Rebuild a codec, or raise InputError if there is none with these parameters."""
        codec = cls._from_parameters(parameters)
        if codec.parameters() != parameters:
            raise CodecError(f"{parameters} is no {cls.name} codec: {codec} has {codec.parameters()}")
        return codec

    @classmethod
    @abstractmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        """`from_parameters`, free to ignore what this codec does not use."""

    def variance(
        self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None
    ) -> float | None:
        """Return E‖mean of n estimates − mean of n gradients‖² / mean ‖gradient‖² by formula, None if there is none."""
        return None

    @abstractmethod
    def _encode(self, gradients: Float32, keys: list[Key]) -> list[Arrays]:
        """`encode`, with arguments that were checked: the arrays of each update."""

    @abstractmethod
    def _decode_sum(self, updates: Sequence[Update], factors: NDArray[np.float64], d: int) -> Float32:
        """Sum over updates of factor times estimate, with arguments that were checked."""

    def _encode_on_gpu(self, gradients: "Tensor", keys: list[Key]) -> list[Arrays]:
        """`_encode` of a tensor on a GPU; computed on the CPU unless a codec can do better."""
        return self._encode(gradients.cpu().numpy(), keys)

    def _decode_sum_on_gpu(
        self, updates: Sequence[Update], factors: NDArray[np.float64], d: int, device: str
    ) -> "Tensor":
        """`_decode_sum` as a tensor on a GPU; computed on the CPU unless a codec can do better."""
        import torch

        return torch.from_numpy(self._decode_sum(updates, factors, d)).to(device)

    def for_shapes(self, shapes: Sequence[tuple[int, ...]]) -> "Codec":
        """Return the codec for a model whose parameters have these shapes; most codecs do not care."""
        return self

    def at_round(self, round_number: int) -> "Codec":
        """Return the codec of a round; most codecs are the same in all of them."""
        return self

    def largest(self) -> "Codec":
        """Return the codec of the round that says most about a gradient: what an audit has to attack."""
        return self

    def work(self, d: int, slot: int = 0) -> int:
        """Return how long decoding one update takes, in additions of rademacher FedMPDD: docs/wire-format.md, "Work".

        One addition is about 10 ps on one core with AVX-512 kernels, whatever the codec. A receiver holds this against
        `Limits.max_work` before it believes a frame. The slot matters where a key's order has to be walked to it.
        """
        return 64 * d

    def _bound(self, updates: Sequence[Update]) -> float:
        """Return a number that no coordinate of any of these updates exceeds; infinity where only decoding tells.

        It is for codecs whose scalars are fewer than the coordinates of the estimate, and saves a look at all of these.
        """
        return math.inf

    @property
    def has_graded_scalars(self) -> bool:
        """Whether its scalars add up and have sizes, so that the middle one of several clients' means something."""
        return False

    def magnitude(self, update: Update) -> float:
        """Return about how long the gradient was that an update stands for, by what it would do to a model.

        What a server compares, within one codec, to tell an update that is too large. Most codecs read it off their
        scale and scalars; one that does not is decoded.
        """
        estimate = self.decode_mean([update]).astype(np.float64)
        return float(np.sqrt(np.square(estimate).sum()))

    def scalars_of(self, update: Update) -> NDArray[np.float64]:
        """Return the scalars of an update, of a codec whose scalars add up."""
        raise self._no_scalars()

    def mean_update(self, updates: Sequence[Update], bits: int, weights: Sequence[float] | None = None) -> Update:
        """Return the (weighted) mean of updates with one key as one update with scalars of so many bits."""
        raise self._no_scalars()

    def update_of(self, scalars: NDArray[np.float64], d: int, key: Key, bits: int) -> Update:
        """Return the update that carries these scalars with so many bits each: a mean that somebody else took."""
        raise self._no_scalars()

    def _no_scalars(self) -> CodecError:
        return CodecError(f"{self} has no scalars that add up; use mpdd, with one key for all clients of a round")

    def bytes_per_update(self, d: int) -> int:
        """Return the bytes of scale and scalars alone: no seed, no header, no checksum (the paper counts so)."""
        return sum(section.nbytes for section in self.sections(d))

    def encode(self, gradients: "Float32 | Tensor", keys: Sequence[Key | int]) -> list[Update]:
        """Encode gradients [clients, d], float32, each with its own key (an integer is a seed).

        An array is encoded on the CPU, a tensor on a GPU there; updates are arrays in either case.
        """
        encode: Any = self._encode
        check: Any = check_gradients
        if getattr(gradients, "is_cuda", False) is True:
            from fedmpdd.directions import cuda

            encode, check = self._encode_on_gpu, cuda.check_gradients
        check(gradients)
        clients, d = gradients.shape
        try:
            checked = [check_key(key) for key in keys]
        except TypeError:
            raise KeyRangeError(f"keys are a sequence of keys, one per gradient, got {keys!r}") from None
        if len(checked) != clients:
            raise KeyRangeError(f"{clients} gradients came with {len(checked)} keys; each gradient needs one")
        for slot in {key.slot for key in checked}:
            self.check(d, slot)
        return [
            Update(self, d, key if self.needs_key else NO_KEY, arrays)
            for key, arrays in zip(checked, encode(gradients, checked), strict=True)
        ]

    def decode_mean(self, updates: Sequence[Update], weights: Sequence[float] | None = None) -> Float32:
        """Estimate the (weighted) mean of the gradients that the updates came from.

        Raises CodecError where the estimate is not finite. Updates that were read from frames never give such a one.
        """
        d = self._check_round(updates)
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            estimate = self._decode_sum(updates, mean_factors(len(updates), weights), d)
        if not (self._surely_finite(updates) or np.isfinite(estimate).all()):
            self._refuse_estimate(updates)
        return estimate

    def decode_mean_on(
        self, device: str, updates: Sequence[Update], weights: Sequence[float] | None = None
    ) -> "Tensor":
        """`decode_mean` as a tensor on a GPU ("cuda", "cuda:1", …); FedMPDD computes it there, to the same bits."""
        d = self._check_round(updates)
        with np.errstate(over="ignore", invalid="ignore"):
            estimate = self._decode_sum_on_gpu(updates, mean_factors(len(updates), weights), d, device)
        # A look at the estimate would wait for the GPU; the scalars, which are here, mostly make it needless.
        if not (self._surely_finite(updates) or bool(estimate.isfinite().all())):
            self._refuse_estimate(updates)
        return estimate

    def _surely_finite(self, updates: Sequence[Update]) -> bool:
        """Whether the scalars alone show that these updates decode to finite numbers, whatever their weights."""
        return self._bound(updates) <= LARGEST_COORDINATE

    def _refuse_estimate(self, updates: Sequence[Update]) -> NoReturn:
        """Say which of the updates made the estimate infinite."""
        for i, update in enumerate(updates):
            try:
                self.check_content(update.arrays, update.d)
            except ContentError as error:
                raise CodecError(f"update {i} of {len(updates)} decodes beyond float32: {error}") from None
        raise CodecError(
            f"the mean of {len(updates)} updates is beyond float32, although each of them is within: their gradients "
            "are too large; scale or clip them before encoding"
        )

    def _check_round(self, updates: Sequence[Update]) -> int:
        """Return the d of updates that this codec can decode together, or raise CodecError."""
        if not updates:
            raise CodecError("there are no updates to decode; a round needs at least one")
        d = updates[0].d
        last = self.sections(d)[-1].length
        # One look at all of them first: a round of small updates is decoded in less time than a check of each takes.
        if (
            {update.d for update in updates} != {d}
            or {len(update.arrays[-1]) for update in updates} != {last}
            or {update.codec for update in updates if update.codec is not self} - {self}
        ):
            self._refuse(updates, d)
        return d

    def _refuse(self, updates: Sequence[Update], d: int) -> NoReturn:
        """Say which of the updates does not belong to the others."""
        sizes = [section.length for section in self.sections(d)]
        for i, update in enumerate(updates):
            if update.codec != self or update.d != d:
                raise CodecError(
                    f"update {i} is from {update.codec} with d = {update.d}, but {self} with d = {d} decodes "
                    "this round; decode the updates of different codecs or models apart"
                )
            if [len(array) for array in update.arrays] != sizes:
                raise CodecError(f"update {i} has arrays of {[len(a) for a in update.arrays]} values, not {sizes}")
        raise AssertionError("every update belongs to the others after all")


def check_count(name: str, value: object, what: str) -> None:
    """Raise CodecError unless a parameter is an integer from 1 to 2^31 − 1."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_M:
        raise CodecError(f"{name} = {value!r} is not a number of {what}: expected an integer from 1 to 2^31 − 1")


def check_bits(bits: object, allowed: tuple[int, ...]) -> None:
    """Raise CodecError unless `bits` is one of the integers that are allowed."""
    if not isinstance(bits, int) or isinstance(bits, bool) or bits not in allowed:
        raise CodecError(f"bits = {bits!r} is not a size of scalars: expected one of {', '.join(map(str, allowed))}")


def mean_factors(count: int, weights: Sequence[float] | None) -> NDArray[np.float64]:
    """Return the weights of so many updates, made to add up to one, or raise CodecError."""
    if weights is None:
        return np.full(count, 1.0 / count)
    try:
        values = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise CodecError(f"weights {weights!r} are not numbers; expected one per update") from None
    if values.shape != (count,):
        raise CodecError(f"{count} updates came with weights of shape {list(values.shape)}; each update needs one")
    # Correctly rounded, so that every implementation gets the same.
    try:
        total = math.fsum(values)
    except (OverflowError, ValueError):  # beyond float64, or inf − inf
        total = math.inf
    if not ((values >= 0).all() and 0 < total < math.inf):
        raise CodecError(
            f"weights {values.tolist()} cannot be averaged with; expected finite, none negative, sum above 0"
        )
    return np.asarray(values / total)
