from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from fedmpdd.codecs import MPDD, decode_pieces, encode_pieces
from fedmpdd.codecs.mpdd import BITS
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


def test_a_billion_coordinates(gpu: str) -> None:
    """d = 1.1 billion in pieces, both families: as from one flat gradient, and every direction that of the spec.

    The gradient is one coordinate of 1 at the very end, so that scalar j is the last sign of direction j, and the
    others are checked through an estimate: E over coordinates of ĝ·g would be lost in rounding.
    """
    import torch

    from fedmpdd.directions import Key, reference
    from fedmpdd.directions.spec import DOMAIN_DIAGONAL, hadamard_order

    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free GPU memory")
    d, m, seed = 1_100_000_000, 64, 0x0123456789ABCDEF
    sizes = [d // 7] * 6 + [d - 6 * (d // 7)]
    for family in ("rademacher", "hadamard"):
        codec = MPDD(m, family=family)

        def pieces() -> Iterator[Any]:
            for i, size in enumerate(sizes):
                piece = torch.zeros(size, device=gpu)
                if i == len(sizes) - 1:
                    piece[-1] = 1
                yield piece

        update = encode_pieces(codec, pieces(), seed, d=d)
        last_tile = (d - 1) // 2048
        place = d - 1 - 2048 * last_tile
        if family == "rademacher":
            expected = [reference.signs(seed, j, 2_048, first_tile=last_tile)[place] for j in range(m)]
        else:
            outer, log2 = hadamard_order(d)
            diagonal = reference.signs(seed, 0, 2_048, DOMAIN_DIAGONAL, last_tile)[place]
            column = d - 1
            rows = [reference.hadamard_row(seed, d, j) for j in range(m)]
            expected = [
                diagonal
                * reference.outer_matrix(outer)[row >> log2, column >> log2]
                * (1 - 2 * ((row & column & ((1 << log2) - 1)).bit_count() % 2))
                for row in rows
            ]
        assert update.arrays[0].tolist() == [float(value) for value in expected]
        # Decoding that update: m / m = 1 at the last coordinate, since every direction meets itself there.
        *_, tail = decode_pieces(codec, [update], sizes, device=gpu)
        assert float(tail[-1]) == pytest.approx(1.0, rel=1e-6)
        assert update.key == Key(seed)
        del tail
