"""The compiled kernels against the reference: every path, every thread count, the same bits."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from fedmpdd.directions import _native, add_scaled, available_isas, reference, spec, using
from fedmpdd.directions.native import backend
from fedmpdd.errors import BackendError
from tests.conftest import gaussian
from tests.directions.test_reference import PHILOX_KNOWN_ANSWERS, words

DIMENSIONS = [1, 63, 64, 2_047, 2_048, 2_049, 100_003]
SEED = 0xFEDC_BA98_7654_3210
FIRST = 3  # a first direction that is no multiple of a group

F32 = NDArray[np.float32]


def arrays(*values: int) -> NDArray[np.uint64]:
    return np.array(values, dtype=np.uint64)


def native_encode(family: str, g: F32, m: int, threads: int, isa: str) -> F32:
    if family == "rademacher":
        return np.asarray(rademacher_encode(g[np.newaxis], arrays(SEED), arrays(FIRST), m, threads, isa)[0])
    out = np.full((1, m), np.nan, dtype=np.float32)
    _native.hadamard_encode(g[np.newaxis], arrays(SEED), arrays(FIRST), out, threads, isa)
    return np.asarray(out[0])


def rademacher_encode(
    g: F32, seeds: NDArray[np.uint64], firsts: NDArray[np.uint64], m: int, threads: int, isa: str
) -> F32:
    sums = np.zeros((len(g), m))
    _native.rademacher_encode(g, 0, seeds, firsts, sums, threads, isa)
    return rounded(sums)


def rounded(sums: NDArray[np.float64]) -> F32:
    out = np.full(sums.shape, np.nan, dtype=np.float32)
    _native.round_sums(sums, out)
    return out


def native_decode(family: str, scalars: F32, d: int, threads: int, isa: str, factor: float = 1.0) -> F32:
    arguments = (scalars[np.newaxis], np.array([factor]), arrays(SEED), arrays(FIRST))
    if family == "hadamard":
        return hadamard_decode(*arguments, d, threads, isa)
    out = np.zeros(d, dtype=np.float32)
    _native.rademacher_decode(*arguments, out, 0, threads, isa)
    return out


def hadamard_decode(
    scalars: F32,
    factors: NDArray[np.float64],
    seeds: NDArray[np.uint64],
    firsts: NDArray[np.uint64],
    d: int,
    threads: int,
    isa: str,
) -> F32:
    padded = np.full(spec.hadamard_size(d), np.nan, dtype=np.float32)
    _native.hadamard_decode(scalars, factors, seeds, firsts, padded, d, threads, isa)
    return padded[:d]


def same_bits(a: F32, b: F32) -> bool:
    return a.tobytes() == b.tobytes()


@pytest.mark.parametrize(("counter", "key", "answer"), PHILOX_KNOWN_ANSWERS)
def test_philox_known_answers(counter: str, key: str, answer: str) -> None:
    low, high = words(key)
    c0, c1, c2, c3 = words(counter)
    assert list(_native.philox4x32(c0, c1, c2, c3, low | high << 32)) == words(answer)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("domain", [spec.DOMAIN_DIRECTIONS, spec.DOMAIN_DIAGONAL])
def test_every_sign_is_that_of_the_reference(isa: str, d: int, domain: int) -> None:
    out = np.empty(d, dtype=np.float32)
    for index in (0, 1, 2**32 - 1):
        _native.signs(SEED, domain, index, out, 0, isa)
        assert same_bits(out, reference.signs(SEED, index, d, domain))


def test_signs_beyond_the_32_bit_block_counter(isa: str) -> None:
    """Coordinates near 2^40 use the high word of the block number."""
    out = np.empty(spec.TILE, dtype=np.float32)
    tile = spec.MAX_D // spec.TILE - 1
    _native.signs(SEED, spec.DOMAIN_DIRECTIONS, 9, out, tile, isa)
    assert same_bits(out, reference.signs(SEED, 9, spec.TILE, first_tile=tile))


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("m", [1, 5, 18])
def test_rademacher_encode_sees_the_signs_of_the_reference(isa: str, d: int, m: int) -> None:
    """A gradient that is a power of two at one coordinate makes every scalar exactly ± that power."""
    for coordinate in {0, d // 2, d - 1}:
        g = np.zeros(d, dtype=np.float32)
        g[coordinate] = 4.0
        expected = [4.0 * reference.signs(SEED, FIRST + j, d)[coordinate] for j in range(m)]
        assert native_encode("rademacher", g, m, 1, isa).tolist() == expected


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_encode_is_within_float32_rounding_of_the_reference(isa: str, family: str, d: int) -> None:
    g = gaussian(d)
    m = min(d, 18)
    exact = {"rademacher": reference.rademacher_encode, "hadamard": reference.hadamard_encode}[family](
        g, SEED, FIRST, m
    )
    # Partial sums of at most ~d terms in float32: a few units in the last place of ‖g‖ at these sizes.
    tolerance = 8 * np.finfo(np.float32).eps * float(np.linalg.norm(g))
    assert np.abs(native_encode(family, g, m, 1, isa) - exact).max() <= tolerance


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("m", [1, 37])
def test_encode_gives_the_same_bits_on_all_paths_and_threads(family: str, d: int, m: int) -> None:
    g = gaussian(d)
    m = min(m, d)
    expected = native_encode(family, g, m, 1, "plain")
    for isa in available_isas():
        for threads in (1, 2, 8):
            assert same_bits(native_encode(family, g, m, threads, isa), expected), (isa, threads)


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
def test_large_work_is_really_shared_among_threads_and_keeps_its_bits(family: str) -> None:
    """Small calls stay on one thread by design; these are large enough to be cut into eight."""
    d, m = 1_000_000, 64
    g = gaussian(d)
    scalars = native_encode(family, g, m, 1, "auto")
    decoded = native_decode(family, scalars, d, 1, "auto")
    packed = np.packbits(scalars < 0, bitorder="little")[np.newaxis]
    votes = []
    for threads in (1, 2, 8):
        assert same_bits(native_encode(family, g, m, threads, "auto"), scalars)
        assert same_bits(native_decode(family, scalars, d, threads, "auto"), decoded)
        out = np.zeros(d, dtype=np.float32)
        _native.onebit_decode(packed, m, np.array([0.1]), arrays(SEED), arrays(FIRST), out, 0, threads, "auto")
        votes.append(out.tobytes())
    assert len(set(votes)) == 1


def test_encode_is_the_same_however_the_work_is_cut() -> None:
    """Few directions of a long gradient are cut by coordinates, many by directions, batches by clients."""
    d, seeds = 300_000, arrays(1, 2, 3, 4, 5)
    g = gaussian(5, d)
    for m in (7, 1100):
        alone = np.concatenate([_encode_batch(g[i : i + 1], seeds[i : i + 1], m, 1) for i in range(5)])
        for threads in (1, 2, 3, 8):
            assert same_bits(_encode_batch(g, seeds, m, threads), alone), (m, threads)


def _encode_batch(g: F32, seeds: NDArray[np.uint64], m: int, threads: int) -> F32:
    return rademacher_encode(g, seeds, np.zeros_like(seeds), m, threads, "auto")


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("m", [1, 4, 6, 21])
def test_rademacher_decode_is_bit_exact(d: int, m: int) -> None:
    scalars = gaussian(m, seed=m)
    expected = np.zeros(d, dtype=np.float32)
    reference.rademacher_decode((scalars.astype(np.float64) * 0.3).astype(np.float32), SEED, FIRST, expected)
    for isa in available_isas():
        for threads in (1, 2, 8):
            assert same_bits(native_decode("rademacher", scalars, d, threads, isa, 0.3), expected), (
                isa,
                threads,
            )


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("m", [1, 16, 50, 257])
def test_onebit_decode_is_bit_exact(d: int, m: int) -> None:
    if d > 10_000 and m > 100:
        m = 100  # the reference takes a second
    negative = np.random.default_rng(m).random(m) < 0.5
    packed = np.packbits(negative, bitorder="little")[np.newaxis]
    expected = np.zeros(d, dtype=np.float32)
    reference.onebit_decode(negative, np.float32(0.7), SEED, FIRST, expected)
    for isa in available_isas():
        for threads in (1, 2, 8):
            out = np.zeros(d, dtype=np.float32)
            _native.onebit_decode(packed, m, np.array([0.7]), arrays(SEED), arrays(FIRST), out, 0, threads, isa)
            assert same_bits(out, expected), (isa, threads)


@pytest.mark.parametrize("d", [*DIMENSIONS, 12, 20, 28, 700, 44_426])
@pytest.mark.parametrize("m", [1, 33])
def test_hadamard_decode_is_bit_exact(d: int, m: int) -> None:
    scalars = gaussian(min(m, d), seed=m)
    expected = np.zeros(d, dtype=np.float32)
    reference.hadamard_decode([scalars], SEED, [FIRST], expected)
    for isa in available_isas():
        for threads in (1, 2, 8):
            assert same_bits(native_decode("hadamard", scalars, d, threads, isa), expected), (isa, threads)


def test_hadamard_transform_beyond_the_cache_is_bit_exact() -> None:
    d = 300_000  # order 20 · 2^14, and with d = 2^19 one run that needs several passes
    for size in (d, 2**19):
        scalars = gaussian(9)
        expected = np.zeros(size, dtype=np.float32)
        reference.hadamard_decode([scalars], SEED, [FIRST], expected)
        for isa in available_isas():
            for threads in (1, 2, 8):
                assert same_bits(native_decode("hadamard", scalars, size, threads, isa), expected), (
                    isa,
                    threads,
                )


def test_partitioned_round_is_bit_exact_even_when_rows_repeat() -> None:
    d, m, clients = 50, 20, 6  # order 56: 120 directions go round it twice
    scalars = gaussian(clients, m)
    expected = np.zeros(d, dtype=np.float32)
    firsts = [i * m for i in range(clients)]
    reference.hadamard_decode(list(scalars), SEED, firsts, expected)
    for isa in available_isas():
        out = hadamard_decode(scalars, np.ones(clients), arrays(*[SEED] * clients), arrays(*firsts), d, 2, isa)
        assert same_bits(out, expected)


def test_decode_adds_clients_in_the_order_of_updates(isa: str) -> None:
    d, m = 5_000, 6
    scalars = gaussian(3, m)
    expected = np.zeros(d, dtype=np.float32)
    for row, seed in zip(scalars, (5, 6, 5), strict=True):
        reference.rademacher_decode(row, seed, 0, expected)
    out = np.zeros(d, dtype=np.float32)
    _native.rademacher_decode(scalars, np.ones(3), arrays(5, 6, 5), arrays(0, 0, 0), out, 0, 2, isa)
    assert same_bits(out, expected)

    expected[:] = 0  # hadamard: the two updates of seed 5 go through one transform, then seed 6
    reference.hadamard_decode([scalars[0], scalars[2]], 5, [0, 6], expected)
    reference.hadamard_decode([scalars[1]], 6, [0], expected)
    assert same_bits(hadamard_decode(scalars, np.ones(3), arrays(5, 6, 5), arrays(0, 0, 6), d, 2, isa), expected)


@pytest.mark.parametrize("d", [2, 28, 56, 7_850, 13_426, 319_242])
def test_rows_are_those_of_the_reference(isa: str, d: int) -> None:
    count = min(spec.hadamard_size(d), 150)
    rows = np.empty(count, dtype=np.uint64)
    first = spec.hadamard_size(d) - count
    _native.hadamard_rows(SEED, d, first, rows, isa)
    assert rows.tolist() == [reference.hadamard_row(SEED, d, first + j) for j in range(count)]


@pytest.mark.parametrize("d", [1, 3, 12, 13, 100, 13_426, 319_242, 2**33 + 1, 2**40])
def test_native_hadamard_order_is_that_of_the_spec(d: int) -> None:
    assert _native.hadamard_order(d) == spec.hadamard_order(d)


def test_rounding_words_are_those_of_the_reference() -> None:
    out = np.empty((2, 11), dtype=np.uint32)
    _native.rounding_words(arrays(SEED, 1), arrays(0, 7), out)
    assert out[0].tolist() == reference.rounding_words(SEED, 0, 11).tolist()
    assert out[1].tolist() == reference.rounding_words(1, 7, 11).tolist()


@pytest.mark.parametrize("d", [1, 15, 16, 1_001])
def test_moments_are_the_same_on_all_paths(d: int) -> None:
    g = gaussian(2, d)
    expected = np.stack([(g.astype(np.float64) ** 2).sum(1), (g.astype(np.float64) ** 4).sum(1)], axis=1)
    results = []
    for isa in available_isas():
        out = np.empty((2, 2))
        _native.moments(g, np.zeros((2, 32)), out, 2, isa)
        results.append(out.tobytes())
        assert np.allclose(out, expected, rtol=1e-12)
    assert len(set(results)) == 1


# ------------------------------------------------------------------------------------------ slices


HIGH_TILE = 2**28 + 48  # its block numbers, sixteen a tile, are beyond 2^32
LAST_TILE = spec.MAX_D // spec.TILE - 3  # the slice ends with the last coordinate there is


@pytest.mark.parametrize("first_tile", [0, 1, 7, HIGH_TILE, HIGH_TILE + 1, LAST_TILE])
def test_decode_of_a_slice_is_that_of_the_reference(isa: str, first_tile: int) -> None:
    length, m = 3 * spec.TILE, 6
    scalars = gaussian(m)
    signs = np.array([reference.signs(SEED, FIRST + j, length, first_tile=first_tile) for j in range(m)])
    terms = scalars[:, np.newaxis] * signs
    expected = ((terms[0] + terms[1]) + (terms[2] + terms[3])) + ((terms[4] + terms[5]) + np.float32(0))
    out = np.zeros(length, dtype=np.float32)
    _native.rademacher_decode(scalars[np.newaxis], np.ones(1), arrays(SEED), arrays(FIRST), out, first_tile, 2, isa)
    assert same_bits(out, expected)

    negative = scalars < 0
    votes = np.where(negative[:, np.newaxis], -signs, signs).sum(axis=0, dtype=np.float32)
    out = np.zeros(length, dtype=np.float32)
    packed = np.packbits(negative, bitorder="little")[np.newaxis]
    _native.onebit_decode(packed, m, np.array([0.7]), arrays(SEED), arrays(FIRST), out, first_tile, 2, isa)
    assert same_bits(out, np.float32(0.7) * votes)


@pytest.mark.parametrize("first_tile", [1, 16, 33])
@pytest.mark.parametrize("length", [1, 2_047, 2_048, 10_000])
def test_decode_of_a_slice_is_a_slice_of_decode(isa: str, first_tile: int, length: int) -> None:
    m, begin = 21, first_tile * spec.TILE
    scalars = gaussian(2, m)
    keys = np.ones(2), arrays(SEED, 5), arrays(FIRST, 0)
    packed = np.packbits(scalars < 0, axis=1, bitorder="little")
    whole, slices = (np.zeros((2, n), dtype=np.float32) for n in (begin + length, length))
    for out, tile in ((whole, 0), (slices, first_tile)):
        _native.rademacher_decode(scalars, *keys, out[0], tile, 2, isa)
        _native.onebit_decode(packed, m, *keys, out[1], tile, 2, isa)
    assert same_bits(slices, whole[:, begin:].copy())


@pytest.mark.parametrize("first_tile", [0, 16, HIGH_TILE, LAST_TILE - 13])
def test_encode_of_a_slice_sees_the_signs_of_the_reference(isa: str, first_tile: int) -> None:
    length, m = 16 * spec.TILE, 5
    signs = np.array([reference.signs(SEED, FIRST + j, length, first_tile=first_tile) for j in range(m)])
    for coordinate in (0, 2_048, length - 1):
        g = np.zeros((1, length), dtype=np.float32)
        g[0, coordinate] = 4.0
        sums = np.full((1, m), 100.0)
        _native.rademacher_encode(g, first_tile, arrays(SEED), arrays(FIRST), sums, 2, isa)
        assert sums[0].tolist() == (100.0 + 4.0 * signs[:, coordinate]).tolist()


@pytest.mark.parametrize("runs", [1, 3])
@pytest.mark.parametrize("m", [1, 37])
@pytest.mark.parametrize("threads", [1, 8])
def test_slices_add_up_to_the_bits_of_the_whole(isa: str, runs: int, m: int, threads: int) -> None:
    d = 250_001
    g, length = gaussian(2, d), runs * 16 * spec.TILE
    keys = arrays(SEED, 5), arrays(FIRST, 0)
    sums, lanes, moments, expected = np.zeros((2, m)), np.zeros((2, 32)), np.empty((2, 2)), np.empty((2, 2))
    for begin in range(0, d, length):
        part = g[:, begin : begin + length].copy()
        _native.rademacher_encode(part, begin // spec.TILE, *keys, sums, threads, isa)
        _native.moments(part, lanes, moments, threads, isa)
    assert same_bits(rounded(sums), rademacher_encode(g, *keys, m, 1, "plain"))
    _native.moments(g, np.zeros((2, 32)), expected, 1, "plain")
    assert moments.tobytes() == expected.tobytes()


@pytest.mark.parametrize("d", [1, 12, 100, 13_426, 100_003])
@pytest.mark.parametrize("threads", [1, 8])
def test_hadamard_encode_in_place_gives_the_same_bits(isa: str, d: int, threads: int) -> None:
    g, m = gaussian(d), min(d, 37)
    buffer = np.full(spec.hadamard_size(d), np.nan, dtype=np.float32)
    buffer[:d] = g
    out = np.empty((1, m), dtype=np.float32)
    _native.hadamard_encode_in_place(buffer, d, arrays(SEED), arrays(FIRST), out, threads, isa)
    assert same_bits(out[0], native_encode("hadamard", g, m, 1, isa))


def test_hadamard_decode_writes_no_negative_zero(isa: str) -> None:
    """Every coordinate is +0 plus something, though the first transform is done where the result will be."""
    d = 5_000
    out = hadamard_decode(np.zeros((1, 3), np.float32), np.ones(1), arrays(SEED), arrays(0), d, 1, isa)
    assert same_bits(out, np.zeros(d, dtype=np.float32))


@pytest.mark.parametrize(
    "call",
    [
        lambda: _native.rademacher_encode(gaussian(2, 5), 0, arrays(1), arrays(0), np.zeros((2, 3)), 1, "auto"),
        lambda: _native.rademacher_encode(gaussian(2, 5), 0, arrays(1, 2), arrays(0, 0), np.zeros((1, 3)), 1, "auto"),
        lambda: _native.rademacher_encode(gaussian(1, 5), 0, arrays(1), arrays(0), np.zeros((1, 3)), 0, "auto"),
        lambda: _native.rademacher_encode(gaussian(1, 5), 8, arrays(1), arrays(0), np.zeros((1, 3)), 1, "auto"),
        lambda: _native.round_sums(np.zeros((1, 3)), np.zeros((1, 2), np.float32)),
        lambda: _native.hadamard_encode_in_place(
            gaussian(9), 9, arrays(1), arrays(0), np.zeros((1, 3), np.float32), 1, "auto"
        ),
        lambda: _native.hadamard_encode_in_place(
            gaussian(12), 9, arrays(1), arrays(0), np.zeros((2, 3), np.float32), 1, "auto"
        ),
        lambda: _native.hadamard_decode(
            gaussian(1, 5), np.ones(2), arrays(1), arrays(0), np.empty(12, np.float32), 9, 1, "auto"
        ),
        lambda: _native.hadamard_decode(
            gaussian(1, 5), np.ones(1), arrays(1), arrays(0), np.empty(9, np.float32), 9, 1, "auto"
        ),
        lambda: _native.moments(gaussian(1, 5), np.zeros((1, 16)), np.empty((1, 2)), 1, "auto"),
        lambda: _native.hadamard_rows(1, 12, 5, np.empty(8, np.uint64), "auto"),
        lambda: _native.hadamard_order(0),
        lambda: _native.isa_name("quantum"),
    ],
)
def test_native_calls_that_would_leave_an_array_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        call()


# ------------------------------------------------------------------------------------------ choosing a path


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["plain", "avx2", "avx512", "neon"])
def test_environment_variable_forces_a_path(name: str) -> None:
    if name not in available_isas():
        pytest.skip(f"this machine cannot run the {name} kernels")
    code = "from fedmpdd.directions import backend; print(backend().isa, backend().threads)"
    result = run_python(code, FEDMPDD_ISA=name, FEDMPDD_THREADS="3")
    assert result.stdout.split() == [name, "3"]


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"FEDMPDD_ISA": "sse9"}, "expected auto, avx512, avx2, neon, plain"),
        ({"FEDMPDD_THREADS": "many"}, "expected 1 to 1024"),
        ({"FEDMPDD_THREADS": "0"}, "expected 1 to 1024"),
    ],
)
def test_wrong_settings_say_what_is_allowed(variables: dict[str, str], message: str) -> None:
    result = run_python("from fedmpdd.directions import backend; backend()", **variables)
    assert result.returncode == 1
    assert message in result.stderr


def test_a_path_of_another_machine_is_refused() -> None:
    missing = sorted({"avx512", "avx2", "neon"} - set(available_isas()))
    with pytest.raises(BackendError, match="cannot run"), using(isa=missing[0]):
        pass


def test_using_is_undone() -> None:
    before = backend()
    with using(threads=7, isa="plain") as inside:
        assert inside == backend() == (7, "plain")
    assert backend() == before


def test_bits_do_not_depend_on_flushing_of_denormals() -> None:
    """torch.set_flush_denormal changes the processor's mode for the whole thread; the kernels put it right."""
    code = """
import numpy as np, torch
from fedmpdd import MPDD, pack
from fedmpdd.directions import using
g = (np.random.default_rng(0).standard_normal((2, 70_000)) * 1e-38).astype(np.float32)
def bits():
    with using(threads=2):
        codecs = [MPDD(m=64, bits=b, family=f) for b in (32, 1) for f in ("rademacher", "hadamard")]
        return [c.decode_mean(c.encode(g, [1, 2])).tobytes() for c in codecs]
plain = bits()
print(torch.set_flush_denormal(True), plain == bits())
"""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed, and it is what sets the mode")
    result = run_python(code)
    assert result.stdout.split() == ["True", "True"], result.stderr


def test_threads_that_cannot_be_started_are_done_without() -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("limits of address space are set the Linux way here")
    code = """
import resource, numpy as np
from pathlib import Path
from fedmpdd import MPDD
g = np.random.default_rng(0).standard_normal((600, 20_000)).astype(np.float32)
expected = [u.arrays[0].tobytes() for u in MPDD(m=64).encode(g[:2], [0, 1])]
used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + 70_000_000, used + 70_000_000))
from fedmpdd.directions import using
with using(threads=60):
    print([u.arrays[0].tobytes() for u in MPDD(m=64).encode(g, range(600))][:2] == expected)
"""
    result = run_python(code)
    assert result.stdout.strip() == "True", result.stderr


def test_kernels_work_in_a_forked_child_and_from_several_threads() -> None:
    """A fork takes no threads along, and Python threads may all be in the kernels at once."""
    code = """
import os, threading, numpy as np
from fedmpdd import MPDD
from fedmpdd.directions import using
g = np.random.default_rng(0).standard_normal((4, 100_000)).astype(np.float32)
codec = MPDD(m=64)
with using(threads=4):
    expected = codec.decode_mean(codec.encode(g, range(4))).tobytes()
    results = []
    work = lambda: results.append(codec.decode_mean(codec.encode(g, range(4))).tobytes())
    workers = [threading.Thread(target=work) for _ in range(4)]
    [w.start() for w in workers]; [w.join() for w in workers]
    assert set(results) == {expected} and len(results) == 4
    child = os.fork()
    if child == 0:
        os._exit(0 if codec.decode_mean(codec.encode(g, range(4))).tobytes() == expected else 1)
    assert os.waitpid(child, 0)[1] == 0
print("fine")
"""
    if not hasattr(os, "fork"):
        pytest.skip("this system has no fork")
    result = run_python(code)
    assert result.stdout.strip() == "fine", result.stderr


@pytest.mark.parametrize("layout", ["a row", "every other", "unaligned", "float64", "int8", "one number"])
def test_scaled_values_are_added_with_one_product_and_one_sum_each(layout: str) -> None:
    row = gaussian(1, 4_099)[0]
    row[:6] = 0.0, -0.0, 1e-45, np.inf, -np.inf, np.nan
    packed = np.frombuffer(b"?" + row.tobytes(), np.uint8)[1:].view("<f4")
    assert not packed.flags.aligned
    values = {
        "a row": row,
        "every other": np.repeat(row, 2)[::2],
        "unaligned": packed,
        "float64": row.astype(np.float64),
        "int8": (np.arange(len(row)) % 200 - 100).astype(np.int8),
        "one number": row[10:11],
    }[layout]
    total = np.full(len(row), -0.0)
    expected = total.copy()
    for factor in (0.02, 1 / 3, 1e30):
        add_scaled(values, factor, total)
        with np.errstate(invalid="ignore"):
            expected += factor * values.astype(np.float64)
    # Every bit, also that of a zero's sign; of a NaN, that it is one.
    assert np.array_equal(np.isnan(total), np.isnan(expected))
    assert total[~np.isnan(total)].tobytes() == expected[~np.isnan(expected)].tobytes()
