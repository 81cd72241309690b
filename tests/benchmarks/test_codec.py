from itertools import islice

import numpy as np
import pytest

from benchmarks import codec as bench
from benchmarks.rivals import numpy_rivals, torch_rivals
from fedmpdd.codecs import MPDD
from tests.conftest import gaussian


def test_every_case_of_ours_is_measured_once() -> None:
    cases = (
        bench.Case("encode", MPDD(4), 50),
        bench.Case("decode", MPDD(4, family="hadamard"), 50, clients=3, goal_ms=1.0),
    )
    rows = list(bench.run(cases, seconds=0.01))
    assert [(row.op, row.impl, row.clients) for row in rows] == [("encode", "fedmpdd", 1), ("decode", "fedmpdd", 3)]
    assert rows[1].goal_ms == 1.0


@pytest.mark.parametrize("op", ["encode", "decode"])
def test_rivals_compute_what_they_claim(op: str) -> None:
    """Each rival's result is right for its own signs: ‖decode‖² and mean s² are those of ±1 directions."""
    g, s = gaussian(2_000), gaussian(300)
    calls = list(numpy_rivals(op, g, s))
    if bench.has_torch():
        calls += torch_rivals(op, g, s)
    for name, call in calls:
        result = np.asarray([float(x) for x in call()], dtype=np.float64)
        if op == "encode":
            assert result.shape == (300,), name
            assert (result**2).mean() == pytest.approx(float(g @ g), rel=0.5), name
        else:
            assert result.shape == (2_000,), name
            assert (result**2).mean() == pytest.approx(float(s @ s) / 300**2, rel=0.3), name


def test_median_is_of_at_least_three_calls() -> None:
    calls = []
    bench.median_ms(lambda: calls.append(1), 0.0)
    assert len(calls) == 4


def test_memory_beyond_input_and_output_is_bounded() -> None:
    """Less than 1 MB, and for hadamard encode one padded buffer (10,485,760 floats), for decode the padding alone."""
    try:
        peaks = {(family, op): peak for family, op, peak in bench.peak_memory(m=100)}
    except bench.MemoryNotMeasurableError as error:
        pytest.skip(str(error))
    assert len(peaks) == 4
    buffers = {("hadamard", "encode"): 4 * 10_485_760, ("hadamard", "decode"): 4 * 485_760}
    for case, peak in peaks.items():
        assert peak < 1_000_000 + buffers.get(case, 0), (case, peak)


def test_cases_have_goals_and_rivals() -> None:
    assert any(case.rivals for case in bench.CASES)
    assert len([case for case in islice(bench.CASES, 20) if case.goal_ms]) >= 6
