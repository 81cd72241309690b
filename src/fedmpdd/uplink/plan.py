"""Which family, m and bits to use for a number of bytes or an error."""

from dataclasses import asdict, dataclass
from typing import Any

from fedmpdd.codecs import MPDD
from fedmpdd.directions import MAX_M, hadamard_size
from fedmpdd.errors import ConfigError
from fedmpdd.wire.frames import Session


@dataclass(frozen=True)
class Plan:
    """One setting and what it does: bytes of a frame, predicted error of the mean, bits that an update reveals."""

    family: str
    m: int
    bits: int
    partitioned: bool
    frame_bytes: int
    round_bytes: int
    error: float
    revealed_bits: int

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


def dimension(d: int | None, model: str | None) -> int:
    """Return the number of parameters, given as such or by a model of the paper on its own dataset."""
    if (d is None) == (model is None):
        raise ConfigError("a plan needs either --d, the number of parameters, or --model, one of the paper's")
    if d is not None:
        return d
    sizes = {"logistic": 7_850, "lenet": 13_426, "cnn-lin2022": 44_426, "cnn-mcmahan2017": 319_242}
    if model not in sizes:
        raise ConfigError(f"--model {model} is unknown: expected one of {', '.join(sizes)}, or give --d")
    return sizes[model]


def _plan(d: int, n: int, codec: MPDD, alignment: float | None) -> Plan:
    partitioned = codec.family == "hadamard"
    frame = Session(codec, d, sends_seed=not partitioned).frame_bytes
    error = codec.variance(d, n, partitioned=partitioned, alignment=alignment)
    assert error is not None
    return Plan(codec.family, codec.m, codec.bits, partitioned, frame, n * frame, error, codec.revealed_bits(d))


def plans(
    d: int, n: int, *, frame_budget: int | None = None, error: float | None = None, alignment: float | None = None
) -> list[Plan]:
    """Return the best m for each family and number of bits, best first.

    With a budget (bytes per client and round): the largest m that fits, smallest error first. With an error: the
    smallest m that stays below it, fewest bytes first. With both: those that keep both, fewest bytes first.
    """
    if frame_budget is None and error is None:
        raise ConfigError("a plan needs a goal: --budget (bytes per client and round), --error, or both")
    if d < 1 or n < 1:
        raise ConfigError(f"d = {d}, clients per round = {n}: both must be at least 1")
    if error is not None and not error >= 0:
        raise ConfigError(f"--error {error} is not an error: expected a number of at least 0")
    rows = []
    for family in ("rademacher", "hadamard"):
        for bits in (32, 16, 8, 4, 1):
            most = min(MAX_M, d if family == "hadamard" else 64 * d)
            if frame_budget is not None:
                most = min(most, _largest_m(family, bits, frame_budget))
            tried = _candidates(d, n, family, most)
            options = [_plan(d, n, MPDD(m, bits=bits, family=family), alignment) for m in tried]
            if error is not None:
                smallest = _smallest_m(d, n, family, bits, most, error, alignment)
                options = [option for option in options if option.error <= error]
                if smallest is not None:
                    options.append(_plan(d, n, MPDD(smallest, bits=bits, family=family), alignment))
            if options:
                rows.append(min(options, key=lambda p: (p.error, p.m) if error is None else (p.m, p.error)))
    by_error = error is None
    return sorted(rows, key=lambda p: (p.error, p.frame_bytes) if by_error else (p.frame_bytes, p.error))


def _largest_m(family: str, bits: int, budget: int) -> int:
    head = 8 + (8 if family == "rademacher" else 0) + (4 if bits < 32 else 0)
    return max(0, (budget - head) * 8 // bits)


def _candidates(d: int, n: int, family: str, most: int) -> list[int]:
    """Return the m among which the smallest error is: the largest, and those that use every row equally often.

    In a partitioned hadamard round the error falls with m only up to the next multiple of all rows; some rows being
    used once more than others can cost more than it brings.
    """
    if most < 1:
        return []
    size = hadamard_size(d)
    even = [-(-k * size // n) for k in range(1, n + 1)] if family == "hadamard" else []
    return sorted({most, *(m for m in even if m <= most)})


def _smallest_m(d: int, n: int, family: str, bits: int, most: int, error: float, alignment: float | None) -> int | None:
    """By bisection, where the error falls with m: up to the first even use of all rows that is good enough."""

    def fits(m: int) -> bool:
        return _plan(d, n, MPDD(m, bits=bits, family=family), alignment).error <= error

    for top in _candidates(d, n, family, most):
        if fits(top):
            low, high = 0, top
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if fits(middle) else (middle, high)
            return high
    return None
