"""The GPU's kernels against those of the CPU: the same bits, encoded and decoded."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd.directions import FAMILIES, Key, partitioned_keys, reference, rounding_words
from fedmpdd.directions.native import moments
from fedmpdd.directions.spec import DOMAIN_DIRECTIONS, hadamard_size
from fedmpdd.errors import GradientError
from tests.conftest import gaussian

# Below a tile, at its edges, several runs of 16 tiles; matrices with each outer factor, one to three passes.
SIZES = [
    (1, 1, 1), (2, 2, 3), (5, 3, 2), (63, 5, 1), (100, 7, 2), (2047, 4, 1), (2048, 4, 2), (2049, 9, 3),
    (13_426, 400, 3), (32_768, 33, 1), (40_000, 130, 3), (44_426, 64, 2), (319_242, 100, 2), (1_500_000, 20, 1),
]  # fmt: skip


def same_bits(tensor: Any, array: NDArray[np.float32]) -> bool:
    return bool(np.array_equal(tensor.cpu().numpy().view(np.uint32), array.view(np.uint32)))


def some_keys(clients: int, kind: str) -> list[Key]:
    if kind == "partitioned":
        return partitioned_keys(77, clients)
    if kind == "repeating":  # the same directions twice in one group
        return [Key(5, i % 2) for i in range(clients)]
    rng = np.random.default_rng(clients)
    return [
        Key(int(seed), int(slot))
        for seed, slot in zip(rng.integers(2**63, size=clients), range(3, clients + 3), strict=True)
    ]


@pytest.mark.parametrize("kind", ["own", "partitioned", "repeating"])
@pytest.mark.parametrize(("d", "m", "clients"), SIZES)
def test_rademacher_has_the_bits_of_the_cpu(gpu: str, d: int, m: int, clients: int, kind: str) -> None:
    import torch

    from fedmpdd.directions import cuda

    family, keys, g = FAMILIES["rademacher"], some_keys(clients, kind), gaussian(clients, d)
    on_device = cuda.keys_on(torch.device(gpu), keys, m)
    scalars = family.encode(g, keys, m)
    assert same_bits(cuda.rademacher_encode(torch.from_numpy(g).to(gpu), on_device, m), scalars)
    factors = np.random.default_rng(1).random(clients)
    out = torch.zeros(d, device=gpu)
    cuda.rademacher_decode(torch.from_numpy(scalars).to(gpu), torch.from_numpy(factors).to(gpu), on_device, out)
    assert same_bits(out, family.decode(scalars, factors, keys, d))
    signs = np.where(scalars < 0, np.float32(-1), np.float32(1))
    out.zero_()
    cuda.rademacher_decode(
        torch.from_numpy(signs).to(gpu), torch.from_numpy(factors).to(gpu), on_device, out, votes=True
    )
    packed = np.packbits(signs < 0, axis=1, bitorder="little")
    assert same_bits(out, family.decode_signs(packed, factors, keys, m, d))


@pytest.mark.parametrize("kind", ["own", "partitioned", "repeating"])
@pytest.mark.parametrize(("d", "m", "clients"), SIZES)
def test_hadamard_has_the_bits_of_the_cpu(gpu: str, d: int, m: int, clients: int, kind: str) -> None:
    import torch

    from fedmpdd.directions import cuda

    m = min(m, d)
    family, keys, g = FAMILIES["hadamard"], some_keys(clients, kind), gaussian(clients, d)
    on_device = cuda.hadamard_keys(torch.device(gpu), keys, m, d)
    scalars = family.encode(g, keys, m)
    assert same_bits(cuda.hadamard_encode(torch.from_numpy(g).to(gpu), on_device, m), scalars)
    factors = np.random.default_rng(1).random(clients)
    out = torch.zeros(d, device=gpu)
    cuda.hadamard_decode(torch.from_numpy(scalars).to(gpu), torch.from_numpy(factors).to(gpu), keys, on_device, out)
    assert same_bits(out, family.decode(scalars, factors, keys, d))


def test_chunks_of_clients_and_coordinates_change_no_bit(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from fedmpdd.directions import cuda

    d, m, keys = 100_000, 40, some_keys(7, "own")
    g = torch.from_numpy(gaussian(7, d)).to(gpu)
    on_device = cuda.keys_on(g.device, keys, m)
    rows = cuda.hadamard_keys(g.device, keys, m, d)
    factors = torch.full((7,), 1 / 7, dtype=torch.float64, device=gpu)

    def everything() -> list[Any]:
        scalars, coefficients = cuda.rademacher_encode(g, on_device, m), cuda.hadamard_encode(g, rows, m)
        out, spread = torch.zeros(d, device=gpu), torch.zeros(d, device=gpu)
        cuda.rademacher_decode(scalars, factors, on_device, out)
        cuda.hadamard_decode(coefficients, factors, keys, rows, spread)
        return [scalars, coefficients, out, spread]

    whole = everything()
    monkeypatch.setattr(cuda, "CHUNK_COORDINATES", 32_768)
    monkeypatch.setattr(cuda, "TRANSFORM_BYTES", 4 * hadamard_size(d) * 2)
    monkeypatch.setattr(cuda, "MAX_GRID", 3)
    assert all(torch.equal(a, b) for a, b in zip(whole, everything(), strict=True))


def test_large_offsets_have_the_signs_of_the_spec(gpu: str) -> None:
    """A slice at the far end of d = 2^40, where block numbers need the counter's high word."""
    import torch

    from fedmpdd.directions import cuda

    keys = [Key(0x0123456789ABCDEF)]
    for first_tile in (2**29 - 2, 2**28 - 1, 2**28, 12_345_678):
        out = torch.zeros(4_096, device=gpu)
        scalars = torch.tensor([[0.0, 0.0, 1.0]], device=gpu)
        one = torch.ones(1, dtype=torch.float64, device=gpu)
        cuda.rademacher_decode(scalars, one, cuda.keys_on(out.device, keys, 3), out, first_tile=first_tile)
        assert same_bits(out, reference.signs(keys[0].seed, 2, 4_096, DOMAIN_DIRECTIONS, first_tile))


def test_rounding_words_and_moments(gpu: str) -> None:
    import torch

    from fedmpdd.directions import cuda

    keys = some_keys(5, "own")
    words = cuda.rounding_words(cuda.keys_on(torch.device(gpu), keys, 130), 130)
    assert np.array_equal(words.cpu().numpy(), rounding_words(keys, 130))
    g = gaussian(5, 200_001)
    assert np.allclose(cuda.moments(torch.from_numpy(g).to(gpu)).cpu().numpy(), moments(g), rtol=1e-12)


def test_a_row_that_comes_twice_starts_a_new_stretch(gpu: str) -> None:
    from fedmpdd.directions import cuda

    # Three updates of four directions out of ten: 0–3, 4–7, then 8, 9, 0, 1, which meets the first.
    assert list(cuda.stretches([(0, 0), (0, 4), (0, 8)], 4, 10)) == [(0, 2), (2, 3)]
    assert list(cuda.stretches([(0, 0), (1, 0), (0, 4), (1, 4)], 4, 10)) == [(0, 4)]
    assert list(cuda.stretches([(0, 0), (0, 0)], 4, 10)) == [(0, 1), (1, 2)]


def test_what_is_no_gradient_is_refused(gpu: str) -> None:
    import torch

    from fedmpdd.codecs import MPDD

    good = torch.ones((2, 10), device=gpu)
    for wrong, word in [
        (good[0], "shape"),
        (good[:0], "shape"),
        (good.double(), "float32"),
        (good.T, "contiguous"),
        (good.clone().requires_grad_(), r"detach\(\)"),
        (torch.full((2, 10), float("nan"), device=gpu), r"gradients\[0, 0\] is nan"),
    ]:
        with pytest.raises(GradientError, match=word):
            MPDD(4).encode(wrong, [1] * len(wrong) if wrong.ndim == 2 else [1])
