"""Which codec, family, m and bits to use for a number of bytes or an error."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from fedmpdd.codecs import MPDD, Codec, Peaks
from fedmpdd.codecs.peaks import GROUPS
from fedmpdd.codecs.registry import parameter_names
from fedmpdd.directions import MAX_M, hadamard_size
from fedmpdd.errors import ConfigError
from fedmpdd.uplink.codec_config import codec_words, parse_codec
from fedmpdd.wire.frames import Session

HOW_TO_READ = (
    "error = E‖decoded mean − mean gradient‖² / mean ‖gradient‖². However large it is, a training converges if its "
    "steps are short enough: step = 1 / (1 + error) is the share of the largest step of uncompressed means that is "
    "proved to be safe (docs/theory.md). Measured, errors up to 26 trained with the whole step, and 210 did not "
    "(docs/results/flower-steps.md). reveals is a count, not a guarantee. bare: bytes of a frame without session tag, "
    "seed and checksum, for transports that vouch for what these show (docs/wire-format.md)."
)
MODELS = {
    "logistic": 7_850,
    "lenet": 13_426,
    "cnn-lin2022": 44_426,
    "cnn-mcmahan2017": 319_242,
    "transformer-tiny": 149_248,
    "transformer": 10_942_464,
}


@dataclass(frozen=True)
class Plan:
    """One setting and what it does: bytes of a frame, predicted error of the mean, bits that an update reveals.

    frame_bytes: of a compact frame. bare_bytes: of a bare one.

    codec: in words. family, m, bits, group: of a codec that was planned; None of others. error: None where there is no
    formula for it.
    """

    codec: str
    family: str | None
    m: int | None
    bits: int | None
    partitioned: bool
    frame_bytes: int
    bare_bytes: int
    round_bytes: int
    error: float | None
    revealed_bits: int
    group: int | None = None

    @property
    def step_share(self) -> float | None:
        """The part of an uncompressed mean's largest step size that is proved to be safe with this error."""
        return None if self.error is None else 1 / (1 + self.error)

    @property
    def label(self) -> str:
        """What a table for people calls it."""
        if self.family is None:
            return self.codec
        kind = self.family if self.group is None else f"peaks of {self.group:,}, {self.family}"
        return f"{kind}, partitioned" if self.partitioned else kind

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return {**asdict(self), "step_share": self.step_share}


@dataclass(frozen=True)
class _Kind:
    """All settings but m, which is what is looked for. group: of peaks, None of the others."""

    family: str
    bits: int
    partitioned: bool
    group: int | None = None

    def plan(self, d: int, n: int, m: int, alignment: float | None) -> Plan:
        """Return what it does with so many directions, or peaks."""
        codec: Codec = MPDD(m, self.bits, self.family) if self.group is None else Peaks(m, self.group, self.family)
        plan = _plan(codec, d, n, alignment, partitioned=self.partitioned, sends_seed=not self.partitioned)
        return replace(plan, family=self.family, m=m, bits=self.bits, group=self.group)

    def most(self, d: int, n: int, budget: int | None) -> int:
        """Return the largest m there is a formula for, or that fits a budget."""
        most = min(MAX_M, d if self.family == "hadamard" else 64 * d)
        if self.group is not None:
            repeats = self.partitioned and self.family == "hadamard"
            most = min(MAX_M, d, hadamard_size(d) // n if repeats else d) // self.group
        return most if budget is None else min(most, max(0, (budget - self._head) * 8 // self.bits))

    def candidates(self, d: int, n: int, most: int) -> list[int]:
        """Return the m among which the smallest error is: the largest, and those that use every row equally often.

        In a partitioned hadamard round the error falls with m only up to the next multiple of all rows; some rows being
        used once more than others can cost more than it brings.
        """
        if most < 1:
            return []
        size = hadamard_size(d)
        repeats = self.family == "hadamard" and self.group is None
        even = [-(-k * size // n) for k in range(1, n + 1)] if repeats else []
        return sorted({most, *(m for m in even if m <= most)})

    @property
    def _head(self) -> int:
        scale = 1 if self.group is not None else 4 if self.bits < 32 else 0
        return 8 + scale + (0 if self.partitioned else 8)


def _kinds() -> Iterator[list[_Kind]]:
    """What is tried: of the kinds in a list the best one becomes a row."""
    for family in ("rademacher", "hadamard"):
        for bits in (32, 16, 8, 4, 1):
            yield [_Kind(family, bits, family == "hadamard")]
    for family in ("rademacher", "hadamard"):
        yield [_Kind(family, group.bit_length(), shared, group) for group in GROUPS for shared in (False, True)]


def dimension(d: int | None, model: str | None) -> int:
    """Return the number of parameters, given as such or by a model of this package on its own dataset."""
    if (d is None) == (model is None):
        raise ConfigError(
            "a plan needs either --d, the number of parameters, or --model, a model's name or import path"
        )
    if d is not None:
        return d
    if model not in MODELS:
        raise ConfigError(
            f"--model {model} is unknown: expected one of {', '.join(MODELS)}, an import path such as mynet.py:Net, or "
            "give --d"
        )
    return MODELS[model]


def plan_of(d: int, n: int, text: str, alignment: float | None = None) -> Plan:
    """Return what a codec does that is given in words, such as qsgd:bits=4 or mycodec.py:Mine(m=3).

    Args:
        d: parameters of the model.
        n: clients a round.
        text: the codec.
        alignment: see Codec.variance.

    Example:
        >>> plan_of(1_000, 10, "randk:k=50").error
        1.9

    """
    config = parse_codec(text)
    codec = config.build().for_shapes([(d,)])
    codec.check(d)
    partitioned, sends = config.keys == "partitioned", config.keys == "sent"
    return replace(_plan(codec, d, n, alignment, partitioned=partitioned, sends_seed=sends), codec=config.words)


def _plan(codec: Codec, d: int, n: int, alignment: float | None, *, partitioned: bool, sends_seed: bool) -> Plan:
    parameters = {name: getattr(codec, name) for name in parameter_names(type(codec))}
    words = codec_words(codec.name, {**parameters, "keys": "partitioned" if partitioned else None})
    frame = Session(codec, d, sends_seed=sends_seed).frame_bytes
    error = codec.variance(d, n, partitioned=partitioned, alignment=alignment)
    bare, reveals = codec.bytes_per_update(d), codec.revealed_bits(d)
    return Plan(words, None, None, None, partitioned, frame, bare, n * frame, error, reveals)


def plans(
    d: int, n: int, *, frame_budget: int | None = None, error: float | None = None, alignment: float | None = None
) -> list[Plan]:
    """Return the best m for each family and number of bits, and the best peaks of each family, best first.

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
    for kinds in _kinds():
        options = [plan for kind in kinds for plan in _options(kind, d, n, frame_budget, error, alignment)]
        if options:
            by_size = kinds[0].group is not None  # m of different groups are different things
            rows.append(min(options, key=lambda p: _rank(p, error, by_size)))
    return sorted(rows, key=lambda p: (_error(p), p.frame_bytes) if error is None else (p.frame_bytes, _error(p)))


def _rank(plan: Plan, error: float | None, by_size: bool) -> Any:
    cost = plan.frame_bytes if by_size else plan.m
    return (_error(plan), cost) if error is None else (cost, _error(plan))


def _error(plan: Plan) -> float:
    return math.inf if plan.error is None else plan.error


def _options(
    kind: _Kind, d: int, n: int, budget: int | None, error: float | None, alignment: float | None
) -> list[Plan]:
    most = kind.most(d, n, budget)
    options = [kind.plan(d, n, m, alignment) for m in kind.candidates(d, n, most)]
    if error is None:
        return options
    smallest = _smallest_m(kind, d, n, most, error, alignment)
    kept = [option for option in options if _error(option) <= error]
    return kept if smallest is None else [*kept, kind.plan(d, n, smallest, alignment)]


def _smallest_m(kind: _Kind, d: int, n: int, most: int, error: float, alignment: float | None) -> int | None:
    """By bisection, where the error falls with m: up to the first even use of all rows that is good enough."""

    def fits(m: int) -> bool:
        return _error(kind.plan(d, n, m, alignment)) <= error

    for top in kind.candidates(d, n, most):
        if fits(top):
            low, high = 0, top
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if fits(middle) else (middle, high)
            return high
    return None


def why_nothing_fits(
    d: int, n: int, *, frame_budget: int | None = None, error: float | None = None, alignment: float | None = None
) -> ConfigError:
    """Return what to say where `plans` finds none: the smallest budget, or error, that there is."""
    if error is None:
        kinds = [kind for kinds in _kinds() for kind in kinds if kind.most(d, n, None)]
        least = min((kind.plan(d, n, 1, None) for kind in kinds), key=lambda plan: plan.frame_bytes)
        why, remedy = f"the smallest frame, of {least.codec}, has {least.frame_bytes} bytes", ""
    elif possible := plans(d, n, error=error, alignment=alignment):
        least, remedy = possible[0], ", or a larger --error"
        why = f"an error of {error:g} takes {least.frame_bytes} bytes, of {least.codec}"
    else:
        least = plans(d, n, frame_budget=2**40, alignment=alignment)[0]
        return ConfigError(
            f"nothing fits: the smallest error is {least.error:.3g}, of {least.codec}; give an --error above that"
        )
    return ConfigError(f"nothing fits: {why}; give --budget {least.frame_bytes} or more{remedy}")
