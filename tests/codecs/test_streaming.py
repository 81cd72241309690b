"""A gradient in pieces must encode, and updates decode, to the bits of the whole."""

import tracemalloc
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd import MPDD, Key, decode_pieces, encode_pieces, pack, partitioned_keys
from fedmpdd.codecs import FedSGD, cutting
from fedmpdd.codecs.mpdd import BITS
from fedmpdd.directions import RUN, using
from fedmpdd.errors import CodecError, GradientError, KeyRangeError
from tests.conftest import gaussian

Float32 = NDArray[np.float32]

SHAPES: list[tuple[int, ...]] = [(1,), (2_047,), (0,), (2_048,), (4, 8_192), (3, 0), (100_003,), ()]
SIZES = [int(np.prod(shape)) for shape in SHAPES]
D = sum(SIZES)

every_codec = pytest.mark.parametrize(
    "codec", [MPDD(m=37, bits=bits, family=family) for family in ("rademacher", "hadamard") for bits in BITS], ids=str
)


def cut(gradient: Float32, shapes: Sequence[tuple[int, ...]] = SHAPES) -> list[Float32]:
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(np.split(gradient, ends[:-1]), shapes, strict=True)]


@every_codec
@pytest.mark.parametrize("chunk", [RUN, cutting.CHUNK])
def test_pieces_encode_to_the_bits_of_the_whole(codec: MPDD, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With small chunks too, so that pieces are cut, gathered and used in place."""
    monkeypatch.setattr(cutting, "CHUNK", chunk)
    g, key = gaussian(D), Key(2**63 + 5, 3)
    whole = codec.encode(g[np.newaxis], [key])[0]
    assert encode_pieces(codec, cut(g), key, d=D) == whole
    assert pack(encode_pieces(codec, (piece for piece in cut(g)), key, d=D)) == pack(whole)


@every_codec
@pytest.mark.parametrize("chunk", [RUN, cutting.CHUNK])
def test_pieces_decode_to_the_bits_of_the_whole(codec: MPDD, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "CHUNK", chunk)
    for keys in ([5, 6, 5], partitioned_keys(7, 3)):
        updates = codec.encode(gaussian(3, D), keys)
        for weights in (None, [1.0, 2.0, 0.5]):
            pieces = list(decode_pieces(codec, updates, SIZES, weights))
            assert [piece.shape for piece in pieces] == [(size,) for size in SIZES]
            assert np.concatenate(pieces).tobytes() == codec.decode_mean(updates, weights).tobytes()


@pytest.mark.parametrize("threads", [1, 8])
def test_large_pieces_on_every_path(isa: str, threads: int) -> None:
    """Pieces beyond a chunk, used where they are: one, several, and the rest of them."""
    sizes = [7, 2**20 + 40_000, 100, 2**20]
    d = sum(sizes)
    g = gaussian(d)
    for bits in (32, 1):
        codec = MPDD(m=3, bits=bits)
        update = codec.encode(g[np.newaxis], [1])[0]
        with using(isa=isa, threads=threads):
            assert encode_pieces(codec, cut(g, [(size,) for size in sizes]), 1, d=d) == update
            pieces = list(decode_pieces(codec, [update], sizes))
        assert np.concatenate(pieces).tobytes() == codec.decode_mean([update]).tobytes()


@every_codec
def test_one_piece_and_pieces_of_one(codec: MPDD) -> None:
    g = gaussian(50)
    whole = codec.encode(g[np.newaxis], [1])[0]
    assert encode_pieces(codec, [g], 1, d=50) == whole
    assert encode_pieces(codec, g[:, np.newaxis], 1, d=50) == whole
    assert (
        np.concatenate(list(decode_pieces(codec, [whole], [1] * 50))).tobytes() == codec.decode_mean([whole]).tobytes()
    )


def test_estimates_handed_out_stay_as_they_are() -> None:
    for family in ("rademacher", "hadamard"):
        codec = MPDD(m=8, family=family)
        updates = codec.encode(gaussian(1, 9_000), [1])
        expected = codec.decode_mean(updates)
        begin = 0
        for piece in decode_pieces(codec, updates, [3_000] * 3):
            assert piece.tobytes() == expected[begin : begin + 3_000].tobytes()
            piece[:] = np.nan  # the caller's own
            begin += 3_000


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
def test_no_piece_is_held_while_the_next_is_made(family: str) -> None:
    def one_by_one() -> Iterator[Float32]:
        for size in (2**20 + 5, 100_000, 2**20):
            piece = np.ones(size, dtype=np.float32)
            alive = weakref.ref(piece)
            yield piece
            del piece
            assert alive() is None

    d = 2**21 + 100_005
    assert encode_pieces(MPDD(m=2, family=family), one_by_one(), 1, d=d).d == d


def test_memory_does_not_grow_with_the_model() -> None:
    """50 million coordinates, 200 MB, in 50 pieces of which one exists at a time: less than 6 MB besides that one."""
    codec, size = MPDD(m=4), 1_000_000
    piece = gaussian(size)
    tracemalloc.start()
    try:
        update = encode_pieces(codec, (piece for _ in range(50)), 1, d=50 * size)
        assert tracemalloc.get_traced_memory()[1] < 6e6
        tracemalloc.reset_peak()
        for out in decode_pieces(codec, [update], [size] * 50):
            assert len(out) == size
            del out
        assert tracemalloc.get_traced_memory()[1] < 6e6 + piece.nbytes
    finally:
        tracemalloc.stop()


# ------------------------------------------------------------------------------------------ refusals

ONES = np.ones(3, dtype=np.float32)


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([ONES], r"the 1 pieces have 3 coordinates, but d = 6; pass all"),
        ([], r"the 0 pieces have 0 coordinates"),
        ([ONES, ONES, ONES], r"pieces up to pieces\[2\] have 9 coordinates, but d = 6; pass each tensor .* once"),
        ([ONES, ONES.astype(np.float64)], r"pieces\[1\]: expected float32, got float64; convert"),
        ([np.ones((2, 3), dtype=np.float32).T], r"make a copy with pieces\[0\]\.copy"),
        ([ONES, [1.0, 2.0, 3.0]], r"pieces\[1\]: expected a NumPy array .* got list"),
        ([ONES, ONES[:0], np.array([1, np.nan, 1], np.float32)], r"pieces\[2\], flattened, is nan at coordinate 1"),
        ([np.array([[1, 2], [3, -np.inf]], np.float32), ONES[:2]], r"pieces\[0\], flattened, is -inf at coordinate 3"),
    ],
)
def test_bad_pieces_are_refused_with_the_remedy(family: str, pieces: list[Any], message: str) -> None:
    with pytest.raises(GradientError, match=message):
        encode_pieces(MPDD(m=2, family=family), pieces, 1, d=6)


def test_a_coordinate_that_is_not_finite_is_found_beyond_the_first_chunk() -> None:
    pieces = [np.zeros(2**20 + 9, dtype=np.float32), np.zeros(50_000, dtype=np.float32)]
    pieces[1][40_000] = np.inf
    with pytest.raises(GradientError, match=r"pieces\[1\], flattened, is inf at coordinate 40000"):
        encode_pieces(MPDD(m=2), pieces, 1, d=2**20 + 50_009)


def test_what_encode_refuses_pieces_refuse_too() -> None:
    with pytest.raises(CodecError, match="use rademacher"):
        encode_pieces(MPDD(m=6, family="hadamard"), [ONES], 1, d=3)
    with pytest.raises(KeyRangeError, match="seed -1"):
        encode_pieces(MPDD(m=2), [ONES], -1, d=3)
    with pytest.raises(CodecError, match="d = 0"):
        encode_pieces(MPDD(m=2), [], 1, d=0)
    with pytest.raises(CodecError, match="too large"):
        encode_pieces(MPDD(m=8), [np.full(2, 2e38, dtype=np.float32)], 1, d=2)
    other: Any = FedSGD()
    with pytest.raises(CodecError, match="for codecs with scalars along directions"):
        encode_pieces(other, [ONES], 1, d=3)


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
def test_bad_rounds_are_refused_before_the_first_piece(family: str) -> None:
    codec = MPDD(m=2, family=family)
    updates = codec.encode(gaussian(2, 6), [1, 2])
    bad: list[tuple[Any, ...]] = [
        ([], [6], None, "no updates"),
        (updates, [3, 2], None, "sizes add up to 5 .* d = 6"),
        (updates, [], None, "sizes add up to 0"),
        (updates, [7, -1], None, "the smallest is -1"),
        (updates, [3.0, 3.0], None, "pass an int per tensor"),
        (updates, [6], [1.0], "each update needs one"),
        (MPDD(m=3, family=family).encode(gaussian(1, 6), [1]), [6], None, "update 0 is from"),
    ]
    for given, sizes, weights, message in bad:
        with pytest.raises(CodecError, match=message):
            decode_pieces(codec, given, sizes, weights)
