"""The contract that FedMPDD and every rival keep.

An author writes six things: `name`, `sections`, `check_content`, `_encode`, `_decode_sum`, and how the codec travels
(`parameters`). What others may ask has an answer here that is safe for every codec, and that a codec which knows better
overrides: `unbiased`, `needs_key`, `variance`, `magnitude`, `evidence`, `work`.
"""

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn, Self, cast, overload

import numpy as np
from numpy.typing import NDArray

from fedmpdd.codecs.backends import HOST, Array, Backend, backend_of, backend_on
from fedmpdd.codecs.evidence import Coordinates, Evidence
from fedmpdd.directions import MAX_M, Key, check_d, check_gradients, check_key
from fedmpdd.errors import CodecCheckError, CodecError, ContentError, FedmpddError, KeyRangeError
from fedmpdd.imports import quote, words_and_line_of

if TYPE_CHECKING:  # PyTorch is there where tensors come in, and is not needed before
    from torch import Tensor

    from fedmpdd.codecs.scalar_codec import ScalarCodec

Float32 = NDArray[np.float32]
Arrays = tuple[NDArray[Any], ...]  # what an update consists of: one array per section of its codec
Columns = tuple[Any, ...]  # the same of several updates: per section an array [updates, length], or one row each

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


@dataclass(frozen=True, eq=False)
class Batch:
    """The updates of several clients, side by side and where they were made, on the CPU or on a GPU.

    columns: one entry per section of the codec: an array [updates, length], or a sequence of rows.
    is_finite: whether they are known to decode to finite numbers: what encode makes always does.
    """

    codec: "Codec"
    d: int
    keys: tuple[Key, ...]
    columns: Columns
    is_finite: bool = False

    def __len__(self) -> int:
        return len(self.keys)

    def __eq__(self, other: object) -> bool:
        return self.updates() == other.updates() if isinstance(other, Batch) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self.updates()))

    def __iter__(self) -> "Iterator[Update]":
        return iter(self.updates())

    def __getitem__(self, number: int) -> Update:
        return self.part(slice(number, number + 1)).updates()[0]

    @classmethod
    def of(cls, updates: Sequence[Update], device: str | None = None) -> "Batch":
        """Put updates of one codec and one d side by side, on a device if one is named."""
        first = updates[0]
        columns: Columns = tuple(zip(*(update.arrays for update in updates), strict=True))
        backend, is_finite = backend_on(device), first.codec.is_surely_finite(columns)  # no look at a GPU is needed
        if backend is not HOST:
            columns = tuple(backend.like(_readable(HOST.stacked(rows))) for rows in columns)
        return cls(first.codec, first.d, tuple(update.key for update in updates), columns, is_finite)

    @classmethod
    def joined(cls, parts: "Sequence[Batch]") -> "Batch":
        """Return the updates of several batches, made by encode_batch with one codec, as one."""
        if len(parts) == 1:
            return parts[0]
        xp = backend_of(parts[0].columns[0]).xp
        columns = tuple(xp.concatenate(section) for section in zip(*(part.columns for part in parts), strict=True))
        keys, is_finite = tuple(key for part in parts for key in part.keys), all(part.is_finite for part in parts)
        return cls(parts[0].codec, parts[0].d, keys, columns, is_finite)

    @property
    def device(self) -> str:
        """Where the updates are: "cpu", or the name of a GPU."""
        return str(backend_of(self.columns[0]).device)

    def part(self, which: slice) -> "Batch":
        """Return some of the updates."""
        columns = tuple(rows[which] for rows in self.columns)
        return Batch(self.codec, self.d, self.keys[which], columns, self.is_finite)

    def updates(self) -> list[Update]:
        """Return the updates one by one, with arrays of the types that sections have."""
        sections = self.codec.sections(self.d)
        columns = [_on_host(rows, section.dtype) for rows, section in zip(self.columns, sections, strict=True)]
        rows = zip(*columns, strict=True)
        return [Update(self.codec, self.d, key, arrays) for key, arrays in zip(self.keys, rows, strict=True)]

    def decode(self, weights: Sequence[float] | None = None) -> Any:
        """Estimate the (weighted) mean gradient, as an array or a tensor where the batch is."""
        return self.codec.decode_batch(self, weights)


def _readable(array: NDArray[Any]) -> NDArray[Any]:
    """An array that PyTorch takes: it has few unsigned types, and no read-only ones."""
    return array.astype(np.int64) if array.dtype == np.uint32 else array


def _on_host(rows: Any, dtype: str) -> Any:
    if isinstance(rows, tuple):
        return [_on_host(row, dtype) for row in rows]
    return backend_of(rows).host(rows).astype(dtype, copy=False)


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
    code: ClassVar[int] = 0  # its number on the wire; 0 for none: its updates travel within a Session alone
    unbiased: ClassVar[bool] = False
    needs_key: ClassVar[bool] = True  # whether decoding needs the key, so that a frame must carry its seed
    self_contained: ClassVar[bool] = False  # whether a frame's header says enough to rebuild the codec
    source: ClassVar[str] = "gradient"  # or "losses": clients send differences of losses instead
    shares_key: ClassVar[bool] = False  # whether all clients of a round have one key unless something else is asked for
    variance_is_bound: ClassVar[bool] = False  # whether `variance` is the largest possible, not the exact one
    noise_from_key: ClassVar[bool] = False  # whether its noise can be repeated by whoever knows the key

    # -------------------------------------------------------------------------------------- what an author writes

    @abstractmethod
    def sections(self, d: int) -> tuple[Section, ...]:
        """Return the arrays that an update of a gradient of d coordinates consists of."""

    @abstractmethod
    def check_content(self, arrays: Arrays, d: int) -> None:
        """Raise ContentError if the arrays of `sections(d)` hold what this codec never writes."""

    @abstractmethod
    def _encode(self, backend: Backend, gradients: Array, keys: list[Key]) -> Columns:
        """`encode`, with arguments that were checked: for each section an array [clients, length].

        Written in the operations of the backend, it runs on the CPU and on a GPU, and gives the same bits.
        """

    @abstractmethod
    def _decode_sum(self, backend: Backend, columns: Columns, keys: Sequence[Key], factors: Array, d: int) -> Array:
        """Sum over updates of factor times estimate, float32 [d], with arguments that were checked."""

    def check(self, d: int, slot: int = 0) -> None:
        """Raise InputError if gradients of d coordinates cannot be encoded in that slot."""
        check_d(d)

    def parameters(self) -> Parameters:
        """Return what a frame must carry to rebuild this codec.

        By default it is a checksum that tells two settings apart: such frames are read in a Session only.
        """
        values = [getattr(self, field.name) for field in fields(self)]  # type: ignore[arg-type]
        return Parameters(size=zlib.crc32(repr(values).encode()) % MAX_M + 1)

    @classmethod
    def _from_parameters(cls, parameters: Parameters) -> Self:
        """`from_parameters`, free to ignore what this codec does not use."""
        raise CodecError(f"{cls.name} frames do not carry all of its parameters; read them in a Session")

    # ------------------------------------------------------------------------- what others ask, with safe answers

    @property
    def adds_up(self) -> bool:
        """Whether an update is one section of numbers, and those of updates with one key add up to their mean's."""
        return False

    @property
    def scalar_codec(self) -> "ScalarCodec | None":
        """This codec, where its updates are scalars along directions of the key; None where they are something else."""
        return None

    def variance(
        self, d: int, n: int = 1, *, partitioned: bool = False, alignment: float | None = None
    ) -> float | None:
        """Return E‖mean of n estimates − mean of n gradients‖² / mean ‖gradient‖² by formula, None if there is none."""
        return None

    def magnitude(self, update: Update) -> float:
        """Return about how long the gradient was that an update stands for, by what it would do to a model.

        What a server compares, within one codec, to tell an update that is too large. Most codecs read it off their
        scale and scalars; one that does not is decoded.
        """
        estimate = self.decode_mean([update]).astype(np.float64)
        return float(np.sqrt(np.square(estimate).sum()))

    def evidence(self, updates: Sequence[Update]) -> Evidence:
        """Return what these updates tell who knows their keys: what an attacker holds a guess against.

        By default every coordinate of what each update decodes to.
        """
        return Coordinates(np.stack([self.decode_mean([update]) for update in updates]))

    def revealed_bits(self, d: int) -> int:
        """Return how many bits one update says about its gradient: scalars and scale, no header, no padding."""
        return 8 * self.bytes_per_update(d)

    def work(self, d: int, slot: int = 0) -> int:
        """Return how long decoding one update takes, in additions of rademacher FedMPDD: docs/wire-format.md, "Work".

        One addition is about 10 ps on one core with AVX-512 kernels, whatever the codec. A receiver holds this against
        `Limits.max_work` before it believes a frame. The slot matters where a key's order has to be walked to it.
        """
        return 64 * d

    def _bound(self, columns: Columns) -> float:
        """Return a number that no coordinate of any of these updates exceeds; infinity where only decoding tells.

        It is for codecs whose scalars are fewer than the coordinates of the estimate, and saves a look at all of these.
        """
        return math.inf

    def for_shapes(self, shapes: Sequence[tuple[int, ...]]) -> "Codec":
        """Return the codec for a model whose parameters have these shapes; most codecs do not care."""
        return self

    def at_round(self, round_number: int) -> "Codec":
        """Return the codec of a round; most codecs are the same in all of them."""
        return self

    def largest(self) -> "Codec":
        """Return the codec of the round that says most about a gradient: what an audit has to attack."""
        return self

    # ----------------------------------------------------------------------------------- what everybody calls

    def along_directions(self) -> "ScalarCodec":
        """Return `scalar_codec`, or raise CodecError where there is none."""
        if self.scalar_codec is None:
            raise CodecError(
                f"{self} has no scalars along directions, which clip, noise, a mean of few bits and clients that go "
                "forwards need; use a codec such as mpdd"
            )
        return self.scalar_codec

    @classmethod
    def from_parameters(cls, parameters: Parameters) -> Self:
        """Rebuild a codec, or raise InputError if there is none with these parameters."""
        codec = cls._from_parameters(parameters)
        if codec.parameters() != parameters:
            raise CodecError(f"{parameters} is no {cls.name} codec: {codec} has {codec.parameters()}")
        return codec

    @classmethod
    def fits_header(cls) -> bool:
        """Return whether a frame's header can name the codec; one without a number travels within sessions alone."""
        return cls.self_contained and cls.code != 0

    def bytes_per_update(self, d: int) -> int:
        """Return the bytes of scale and scalars alone: no seed, no header, no checksum (the paper counts so)."""
        return sum(section.nbytes for section in self.sections(d))

    @overload
    def encode(self, gradients: "Float32 | Tensor", keys: Key | int) -> Update: ...  # type: ignore[overload-overlap]

    @overload
    def encode(self, gradients: "Float32 | Tensor", keys: Sequence[Key | int]) -> list[Update]: ...

    def encode(self, gradients: "Float32 | Tensor", keys: Key | int | Sequence[Key | int]) -> Update | list[Update]:
        """Encode one gradient with its key, or the gradients of several clients with one key each.

        Args:
            gradients: float32, [d] or [clients, d]. An array is encoded on the CPU, a tensor on a GPU there.
            keys: a key for one gradient, a sequence of keys for several. An integer is a seed.

        Returns:
            The update of one gradient, or a list with those of several. Updates are arrays in either case.

        Example:
            >>> codec = MPDD(m=8)
            >>> codec.encode(np.ones(20, np.float32), 7) == codec.encode(np.ones((1, 20), np.float32), [7])[0]
            True

        """
        if isinstance(keys, Key | int) and getattr(gradients, "ndim", 0) == 1:
            return self.encode_batch(gradients[None], [keys]).updates()[0]
        return self.encode_batch(gradients, cast(Sequence[Key | int], keys)).updates()

    def encode_batch(self, gradients: "Float32 | Tensor", keys: Sequence[Key | int]) -> Batch:
        """Encode as `encode` does; the updates stay side by side, and where the gradients are."""
        backend = self._backend_for(gradients)
        clients, d = gradients.shape
        checked = self.check_keys(keys, clients, d)
        with self._kept_contract("_encode"):
            columns = self._encode(backend, gradients, checked)
        if backend is not HOST:
            columns = self._settled(backend, gradients, checked, columns)
        if self._is_foreign:
            self._check_columns(columns, clients, d)
        finite = not self._is_foreign  # nobody knows whether others look for infinities
        return Batch(self, d, tuple(checked) if self.needs_key else (NO_KEY,) * clients, columns, is_finite=finite)

    @property
    def _is_foreign(self) -> bool:
        """Whether somebody else wrote the class: what it does is held against the contract in every call."""
        return not type(self).__module__.startswith("fedmpdd.")

    @contextmanager
    def _kept_contract(self, method: str) -> Iterator[None]:
        """Turn what a method of somebody's codec raises into one line, the traceback behind it."""
        try:
            yield
        except (FedmpddError, MemoryError):
            raise
        except Exception as error:
            if not self._is_foreign:
                raise
            raise CodecCheckError(f"codec {self.name}: {method} raises {words_and_line_of(error)}") from error

    def _check_columns(self, columns: Any, clients: int, d: int) -> None:
        """Raise CodecCheckError unless `_encode` gave what `sections` says."""
        with self._kept_contract("sections"):
            sections = list(self.sections(d))
            expected: Any = [(clients, section.length) for section in sections]
            types = [np.dtype(section.dtype) for section in sections]
        came: Any = f"a {type(columns).__name__}"
        if isinstance(columns, tuple | list):
            came = [getattr(column, "shape", type(column).__name__) for column in columns]
            came = [
                tuple(shape) if isinstance(shape, Sequence) and not isinstance(shape, str) else shape for shape in came
            ]
            if came == expected:
                pairs = zip(columns, types, strict=True)
                wrong = [(one.dtype, kind) for one, kind in pairs if isinstance(one, np.ndarray) and one.dtype != kind]
                if not wrong:
                    return
                came, expected = f"an array of {wrong[0][0]}", wrong[0][1]
        raise CodecCheckError(
            f"codec {self.name}: _encode gives {came}, and sections says {expected}; expected a tuple with an array "
            "[clients, length] of each section's type"
        )

    def _check_estimate(self, estimate: Any, d: int) -> None:
        """Raise CodecCheckError unless `_decode_sum` gave a vector."""
        shape, kind = (getattr(estimate, name, None) for name in ("shape", "dtype"))
        if shape is None or tuple(shape) != (d,) or str(kind).removeprefix("torch.") != "float32":
            came = f"a {type(estimate).__name__}" if shape is None else f"an array {list(shape)} of {kind}"
            raise CodecCheckError(
                f"codec {self.name}: _decode_sum gives {came}; expected float32 [{d}], one number per coordinate"
            )

    def _backend_for(self, gradients: Any) -> Backend:
        if getattr(gradients, "is_cuda", False) is True:
            from fedmpdd.directions import cuda

            cuda.check_gradients(gradients)
            return backend_of(gradients)
        check_gradients(gradients)
        return HOST

    def check_keys(self, keys: Sequence[Key | int], clients: int, d: int) -> list[Key]:
        """Return the keys of so many gradients of d coordinates, or raise KeyRangeError."""
        try:
            single = isinstance(keys, Key)  # a tuple of numbers, each of which would pass for a seed
            checked = [] if single else [check_key(key) for key in keys]
        except TypeError:
            single = True
        if single:
            raise KeyRangeError(f"keys are a sequence of keys, one per gradient, got {keys!r}")
        if len(checked) != clients:
            raise KeyRangeError(f"{clients} gradients came with {len(checked)} keys; each gradient needs one")
        for slot in {key.slot for key in checked}:
            self.check(d, slot)
        return checked

    def _settled(self, backend: Any, gradients: Any, keys: list[Key], columns: Columns) -> Columns:
        """Raise what the backend put off, and encode the clients on the CPU whose last bits it cannot vouch for."""
        for client in backend.settle(gradients):
            rows = np.ascontiguousarray(gradients[client : client + 1].cpu().numpy())
            for column, exact in zip(columns, self._encode(HOST, rows, [keys[client]]), strict=True):
                column[client] = backend.like(_readable(HOST.stacked(exact)))[0].to(column.dtype)
        return columns

    def decode_mean(self, updates: Sequence[Update], weights: Sequence[float] | None = None) -> Float32:
        """Estimate the (weighted) mean of the gradients that the updates came from.

        Raises CodecError where the estimate is not finite. Updates that were read from frames never give such a one.
        """
        self._check_round(updates)
        estimate: Float32 = self.decode_batch(Batch.of(updates), weights)
        return estimate

    def decode_mean_on(
        self, device: str, updates: Sequence[Update], weights: Sequence[float] | None = None
    ) -> "Tensor":
        """`decode_mean` as a tensor on a device ("cuda", "cuda:1", …), computed there to the same bits."""
        self._check_round(updates)
        estimate: Tensor = self.decode_batch(Batch.of(updates, device), weights)
        return estimate

    def decode_batch(self, batch: Batch, weights: Sequence[float] | None = None) -> Any:
        """Estimate the (weighted) mean gradient of a batch, as an array or a tensor where the batch is."""
        backend = backend_of(batch.columns[0])
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            equal = weights is None
            factors = backend.equal_factors(len(batch)) if equal else backend.like(mean_factors(len(batch), weights))
            with self._kept_contract("_decode_sum"):
                estimate = self._decode_sum(backend, batch.columns, batch.keys, factors, batch.d)
        if self._is_foreign:
            self._check_estimate(estimate, batch.d)
        # A look at all coordinates would wait for a GPU; the scalars mostly make it needless.
        if not batch.is_finite and not backend.all_finite(estimate):
            self.refuse_estimate(batch.updates())
        return estimate

    def is_surely_finite(self, columns: Columns) -> bool:
        """Return whether the scalars alone show that these updates decode to finite numbers, whatever their weights."""
        return self._bound(columns) <= LARGEST_COORDINATE

    def refuse_estimate(self, updates: Sequence[Update]) -> NoReturn:
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
        if isinstance(updates, Update) or not isinstance(next(iter(updates), None), Update | None):
            raise CodecError(f"updates = {quote(updates)}: expected a list of updates; frames become some by unpack")
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
