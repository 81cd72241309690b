from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedmpdd.codecs import MPDD, decode_pieces, encode_pieces
from fedmpdd.codecs.mpdd import BITS
from fedmpdd.directions import reference
from fedmpdd.directions.spec import DOMAIN_DIAGONAL, hadamard_order
from fedmpdd.errors import GradientError
from tests.conftest import gaussian

SIZES = [1, 0, 2_047, 2_048, 32_768, 100_003, 5]


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
@pytest.mark.parametrize("bits", BITS)
def test_pieces_give_the_bits_of_the_whole(gpu: str, bits: int, family: str) -> None:
    import torch

    codec = MPDD(m=50, bits=bits, family=family)
    g = gaussian(sum(SIZES))
    pieces = np.split(g, np.cumsum(SIZES)[:-1])
    whole = codec.encode(g[np.newaxis], [7])[0]
    update = encode_pieces(codec, (torch.from_numpy(piece.copy()).to(gpu) for piece in pieces), 7, d=g.size)
    assert update.arrays[-1].tobytes() == whole.arrays[-1].tobytes()
    assert np.allclose(update.arrays[0].astype(np.float64), whole.arrays[0].astype(np.float64), rtol=1e-7)
    estimate = np.concatenate([piece.cpu().numpy() for piece in decode_pieces(codec, [whole], SIZES, device=gpu)])
    assert estimate.tobytes() == codec.decode_mean([whole]).tobytes()


def test_what_is_no_piece_is_refused(gpu: str) -> None:
    import torch

    good = torch.ones(10, device=gpu)
    wrong: Any
    for wrong, word in [
        (np.ones(10, np.float32), "ndarray"),
        (good.cpu(), "cpu"),
        (good.double(), "float32"),
        (good * float("inf"), "finite"),
    ]:
        with pytest.raises(GradientError, match=word):
            encode_pieces(MPDD(3), [good, wrong], 1, d=20)


def last_signs(family: str, seed: int, d: int, m: int) -> list[float]:
    """The last coordinate of the first m directions, by the slow reference."""
    tile = (d - 1) // 2_048
    place = d - 1 - 2_048 * tile
    if family == "rademacher":
        return [float(reference.signs(seed, j, 2_048, first_tile=tile)[place]) for j in range(m)]
    outer, log2 = hadamard_order(d)
    diagonal = reference.signs(seed, 0, 2_048, DOMAIN_DIAGONAL, tile)[place]
    column, inside = d - 1, (1 << log2) - 1
    rows = [reference.hadamard_row(seed, d, j) for j in range(m)]
    return [
        float(diagonal * reference.outer_matrix(outer)[row >> log2, column >> log2])
        * (-1) ** (row & column & inside).bit_count()
        for row in rows
    ]


@pytest.mark.parametrize(
    ("family", "d", "gigabytes"),
    [("rademacher", 1_100_000_000, 10), ("hadamard", 1_100_000_000, 30), ("hadamard", 2**34, 90)],
)
def test_billions_of_coordinates(gpu: str, family: str, d: int, gigabytes: int) -> None:
    """A gradient whose last coordinate alone is not zero: scalar j must be the last sign of direction j."""
    import torch

    torch.cuda.empty_cache()
    if torch.cuda.mem_get_info()[0] < gigabytes * 2**30:
        pytest.skip(f"needs {gigabytes} GiB of free GPU memory")
    codec, seed = MPDD(64, family=family), 0x0123456789ABCDEF
    sizes = [d // 16] * 15 + [d - 15 * (d // 16)]

    def pieces() -> Iterator[Any]:
        for size in sizes[:-1]:
            yield torch.zeros(size, device=gpu)
        last = torch.zeros(sizes[-1], device=gpu)
        last[-1] = 1
        yield last

    update = encode_pieces(codec, pieces(), seed, d=d)
    assert update.arrays[0].tolist() == last_signs(family, seed, d, 64)
    if d > 2**32:  # decoding needs a result beside the buffer
        return
    for piece in decode_pieces(codec, [update], sizes, device=gpu):
        tail = piece
    # Every direction meets itself at the last coordinate: 64 times 1/64.
    assert float(tail[-1]) == 1.0
