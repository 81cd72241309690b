"""What is the peaks' own: which direction is one, the scale and its byte, the variance, what is refused."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmpdd import MPDD, Key, partitioned_keys
from fedmpdd.codecs import Parameters, Peaks
from fedmpdd.codecs.backends import HOST
from fedmpdd.codecs.packing import pack_indices, unpack_indices
from fedmpdd.codecs.peaks import GROUPS
from fedmpdd.codecs.scalar_codes import _scale_levels, rounding_factor, scale_values
from fedmpdd.directions import reference
from fedmpdd.errors import CodecError, ContentError
from tests.conftest import gaussian


@pytest.mark.parametrize(("family", "slot"), [("rademacher", 0), ("rademacher", 3), ("hadamard", 0)])
def test_estimate_is_the_definition(family: str, slot: int) -> None:
    d, m, group, seed = 300, 5, 16, 99
    g = gaussian(1, d)
    exact = g[0].astype(np.float64)
    first = slot * m * group
    directions = np.array(
        [
            reference.hadamard_direction(seed, d, first + j)
            if family == "hadamard"
            else reference.signs(seed, first + j, d)
            for j in range(m * group)
        ],
        dtype=np.float64,
    ).reshape(m, group, d)
    derivatives = directions @ exact
    places = np.abs(derivatives).argmax(axis=1)
    peaks = derivatives[np.arange(m), places]
    codec = Peaks(m, group, family)
    update = codec.encode(g, [Key(seed, slot)])[0]
    scalars = codec.scalars_of(update)
    (sent_places,) = scalars.nonzero()
    assert sent_places.tolist() == (np.arange(m) * group + places).tolist()
    assert np.sign(scalars[sent_places]).tolist() == np.sign(peaks).tolist()
    scale = exact @ exact / np.abs(peaks).mean()
    sent = scale_values()[update.arrays[0][0]]
    assert 2**-0.25 < sent / scale < 2**0.25
    estimate = sent / m * np.sign(peaks) @ directions[np.arange(m), places]
    assert np.allclose(codec.decode_mean([update]), estimate, rtol=1e-5, atol=1e-6)


def test_along_the_gradient_only_the_byte_of_the_scale_is_lost() -> None:
    g = gaussian(1, 3_000)
    exact = g[0].astype(np.float64)
    codec = Peaks(7, 64)
    along = []
    for seed in range(400):
        update = codec.encode(g, [seed])
        along.append(codec.decode_mean(update).astype(np.float64) @ exact / (exact @ exact))
    assert 2**-0.25 < min(along) < max(along) < 2**0.25
    # False alarm: 5 standard errors, 6e-7 with fresh seeds.
    assert abs(np.mean(along) - 1) < 5 * np.std(along) / math.sqrt(len(along))


@pytest.mark.parametrize("family", ["rademacher", "hadamard"])
@pytest.mark.parametrize(("m", "group"), [(7, 256), (40, 16), (3, 512)])
def test_variance_is_that_of_the_formula(m: int, group: int, family: str) -> None:
    """Within 5 standard errors (false alarm: 6e-7 with fresh seeds) and a percent: the byte of the scale."""
    d, trials = 2_000, 500
    codec, g = Peaks(m, group, family), gaussian(1, d)
    exact = g[0].astype(np.float64)
    updates = (codec.encode(g, [seed]) for seed in range(trials))
    errors = np.array([((codec.decode_mean(update) - exact) ** 2).sum() / (exact @ exact) for update in updates])
    expected = codec.variance(d)
    assert expected is not None
    standard_error = errors.std() / math.sqrt(trials)
    assert standard_error < 0.01 * expected
    assert abs(errors.mean() - expected) < 5 * standard_error + 0.01 * expected


def test_fewer_bytes_than_one_bit_for_the_same_error() -> None:
    d = 319_242
    peaks, signs = Peaks(14), MPDD(m=200, bits=1, family="hadamard")
    error = peaks.variance(d)
    assert error is not None
    assert error < signs.variance(d)
    assert (peaks.bytes_per_update(d), signs.bytes_per_update(d)) == (17, 29)


def test_partitioned_rounds_have_a_formula_until_directions_repeat() -> None:
    d, n = 2_048, 4
    codec = Peaks(8, 64)  # four clients hold every row once
    g = np.tile(gaussian(1, d), (n, 1))
    exact = g[0].astype(np.float64)
    errors = []
    for seed in range(300):
        estimate = codec.decode_mean(codec.encode(g, partitioned_keys(seed, n)))
        errors.append(((estimate - exact) ** 2).sum() / (exact @ exact))
    expected = codec.variance(d, n, partitioned=True, alignment=1.0)
    assert expected is not None
    # False alarm: 5 standard errors and a percent, below 6e-7 with fresh seeds.
    assert abs(np.mean(errors) - expected) < 5 * np.std(errors) / math.sqrt(300) + 0.01 * expected
    assert codec.variance(d, n + 1, partitioned=True) is None
    assert codec.variance(d, 1, partitioned=True) == codec.variance(d)


def test_the_byte_of_a_scale_is_right_on_average() -> None:
    values = scale_values()
    assert len(values) == 256
    assert values[128] == 1
    assert np.allclose(values[2:] / values[1:-1], 2**0.25, rtol=1e-15)
    uniform = (np.arange(100_000) + 0.5) / 100_000
    for scale in (0.0, values[1] / 3, values[1], 1.0, 1.1, 77.7, values[-1]):
        rounded = values[_scale_levels(HOST, np.full(uniform.size, scale), uniform)]
        assert rounded.mean() == pytest.approx(scale, rel=1e-4)
    # What it adds, for scales that are spread evenly on a logarithmic axis.
    scales = 2.0 ** np.linspace(3, 4, 100_000, endpoint=False)
    squares = [values[_scale_levels(HOST, scales, np.full(scales.size, u))] ** 2 for u in (np.arange(50) + 0.5) / 50]
    assert np.mean(squares / scales**2) == pytest.approx(rounding_factor(), rel=1e-4)


def test_gradients_beyond_the_byte() -> None:
    with pytest.raises(CodecError, match=r"above 2\^31.75"):
        Peaks(2, 4).encode(np.full((1, 100), 1e10, dtype=np.float32), [1])
    with pytest.raises(CodecError, match="a projection is above"):
        Peaks(2, 4).encode(np.full((1, 100), 3e38, dtype=np.float32), [1])
    tiny = Peaks(2, 4).encode(np.full((1, 100), 1e-30, dtype=np.float32), [1])[0]
    assert not tiny.arrays[0].any()
    assert not tiny.arrays[1].any()


@given(bits=st.integers(1, 17), data=st.data())
def test_numbers_survive_packing(bits: int, data: st.DataObject) -> None:
    numbers = np.array(data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=40)), dtype=np.uint32)
    packed = pack_indices(HOST, numbers[np.newaxis], bits)
    assert packed.shape[1] == -(-len(numbers) * bits // 8)
    assert unpack_indices(HOST, packed, bits, len(numbers)).tolist() == [numbers.tolist()]


def test_content_that_is_never_written_is_refused() -> None:
    codec, one = Peaks(3, 4), np.ones(1, dtype=np.uint8)
    codec.check_content((one, np.array([0xFF, 1], dtype=np.uint8)), 100)
    codec.check_content((one * 0, np.array([0, 0], dtype=np.uint8)), 100)
    with pytest.raises(ContentError, match="a peak is not"):
        codec.check_content((one * 0, np.array([1, 0], dtype=np.uint8)), 100)
    with pytest.raises(ContentError, match="the 7 bits after the last"):
        codec.check_content((one, np.array([0, 2], dtype=np.uint8)), 100)


@pytest.mark.parametrize("group", [0, 2, 3, 100, 2**17, True, 4.0, "4"])
def test_groups_that_no_codec_has(group: Any) -> None:
    with pytest.raises(CodecError, match="expected a power of two from 4 to 65,536"):
        Peaks(3, group)


def test_parameters() -> None:
    for group in GROUPS:
        codec = Peaks(3, group, "rademacher")
        assert codec.parameters() == Parameters(0, int(math.log2(group)), 3)
        assert Peaks.from_parameters(codec.parameters()) == codec
    for parameters in (Parameters(0, 1, 3), Parameters(0, 17, 3), Parameters(0, 255, 3), Parameters(2, 4, 3)):
        with pytest.raises(CodecError):
            Peaks.from_parameters(parameters)
    with pytest.raises(CodecError, match="m · group"):
        Peaks(2**20, 2**16)
    with pytest.raises(CodecError, match="no more than d of hadamard directions"):
        Peaks(2, 64).encode(gaussian(1, 127), [1])


def test_peaks_that_grow_double_when_the_rounds_have() -> None:
    codec = Peaks(7, grows_to=52, grows_after=300)
    sizes = {k: codec.at_round(k) for k in (0, 299, 300, 599, 600, 1_199, 1_200, 2_399, 2_400, 10**12)}
    assert {k: one.m for k, one in sizes.items()} == {
        0: 7, 299: 7, 300: 14, 599: 14, 600: 28, 1_199: 28, 1_200: 52, 2_399: 52, 2_400: 52, 10**12: 52
    }  # fmt: skip
    assert sizes[600] == Peaks(28), "what is sent says nothing of the schedule"
    assert codec.largest() == Peaks(52)
    assert Peaks(7).at_round(10**6) == Peaks(7).largest() == Peaks(7)


def test_a_model_must_have_room_for_what_peaks_grow_to() -> None:
    Peaks(7, grows_to=52, grows_after=300).check(13_426)
    with pytest.raises(CodecError, match=r"53 peaks of 256 are 13,568 derivatives .* lower grows_to or group"):
        Peaks(7, grows_to=53, grows_after=300).check(13_426)


@pytest.mark.parametrize(
    ("growth", "message"),
    [
        ({"grows_to": 52}, "belong together"),
        ({"grows_after": 300}, "belong together"),
        ({"grows_to": 7, "grows_after": 300}, "no more than m = 7"),
        ({"grows_to": 52, "grows_after": 0}, "grows_after = 0"),
        ({"grows_to": "52", "grows_after": 300}, "grows_to = '52'"),
        ({"grows_to": 2**30, "grows_after": 300}, "grows_to · group"),
    ],
)
def test_growth_that_makes_no_sense_is_refused(growth: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        Peaks(7, **growth)
