"""How long the server's step should be where no step size is given: the table of docs/results/flower-steps.md.

    python tools/steps.py --out steps                               # the eight cells
    python tools/steps.py --out steps --cells two --rules all       # two nodes, with all rules that lost
    python tools/steps.py --out steps --cells more --seeds 2        # fewer directions; longer local training

The example app, examples/flower-mnist, in one process: its model, its training and its digits, twenty rounds of twenty
local steps. A seed chooses the first model and the directions, the same for all rules; batches are always alike. Each
training is one line of a file, so that what is done is not done again.
"""

import argparse
import functools
import json
import logging
import math
import random
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from unittest import mock

import torch
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "flower-mnist")]

from flower_mnist import client_app, task  # noqa: E402

from fedmpdd.flower import FedMPDD  # noqa: E402
from fedmpdd.flower.caution import Caution  # noqa: E402
from fedmpdd.flower.layout import Float32  # noqa: E402
from fedmpdd.flower.replies import Contribution  # noqa: E402
from fedmpdd.uplink.reference import lower_median  # noqa: E402
from tests.flower.grid import InProcessGrid  # noqa: E402

ROUNDS, BATCH, LR = 20, 32, 0.02
ONE_BIT = "bits=1:family=hadamard"
CODECS = ("auto", *(f"mpdd:m={m}:{ONE_BIT}" for m in (2_000, 400, 50)))
CELLS = {
    "table": [(codec, nodes, 20) for nodes in (2, 20) for codec in CODECS],
    "two": [(codec, 2, 20) for codec in CODECS],
    # Fewer directions still, and local training that goes twenty times as far.
    "more": [(f"mpdd:m=10:{ONE_BIT}", 2, 20), *((f"mpdd:m={m}:{ONE_BIT}", 2, 400) for m in (400, 50))],
}


class Rule(Protocol):
    """How much of each round's step to take, as `Caution` says it."""

    def share(self, estimate: Float32, error: float) -> float:
        """See Caution."""
        ...

    def remember(self, estimate: Float32, error: float, factor: float) -> None:
        """See Caution."""
        ...


class Fixed:
    """A share that only depends on the error."""

    def __init__(self, share: Callable[[float], float]) -> None:
        self._share = share

    def share(self, estimate: Float32, error: float) -> float:
        """See Rule."""
        return self._share(error)

    def remember(self, estimate: Float32, error: float, factor: float) -> None:
        """See Rule: nothing."""


class Growth(Fixed):
    """A share that falls with a power of how far updates have grown beyond some times the smallest ones.

    magnitude: the median one of the round at work.
    """

    def __init__(self, power: float, allowed: float = 1.0, share: Callable[[float], float] = lambda error: 1.0) -> None:
        super().__init__(share)
        self._power, self._allowed = power, allowed
        self._smallest = self.magnitude = math.inf

    def share(self, estimate: Float32, error: float) -> float:
        """See Rule."""
        self._smallest = min(self._smallest, self.magnitude)
        growth = self.magnitude / self._smallest / self._allowed
        return max(1 / (1 + error), min(super().share(estimate, error), max(1.0, growth) ** -self._power))


class Tripwire(Growth):
    """A share until updates are so many times larger than the smallest ones, and the most careful one from then on."""

    def __init__(self, allowed: float, share: Callable[[float], float]) -> None:
        super().__init__(math.inf, allowed, share)

    def share(self, estimate: Float32, error: float) -> float:
        """See Rule."""
        self._smallest = min(self._smallest, self.magnitude)
        if self.magnitude > self._allowed * self._smallest:
            self._smallest = 0.0
        return self._share(error) if self._smallest > 0 else 1 / (1 + error)


def _length(times: float) -> Callable[[float], float]:
    return lambda error: min(1.0, times / math.sqrt(1 + error))


def _inverse(limit: float) -> Callable[[float], float]:
    return lambda error: min(1.0, limit / error)


RULES: dict[str, Callable[[], Rule]] = {
    "default": Caution,
    "lr=1.0": lambda: Fixed(lambda error: 1.0),
    "1 / (1 + error)": lambda: Fixed(lambda error: 1 / (1 + error)),
    "30 / error": lambda: Fixed(_inverse(30)),
    "60 / error": lambda: Fixed(_inverse(60)),
    "90 / error": lambda: Fixed(_inverse(90)),
    "4 lengths": lambda: Fixed(_length(4)),
    "6 lengths": lambda: Fixed(_length(6)),
    "8 lengths": lambda: Fixed(_length(8)),
    "growth": lambda: Growth(1.0),
    "growth squared": lambda: Growth(2.0),
    "growth beyond 10, squared": lambda: Growth(2.0, 10.0),
    "tripwire at 10": lambda: Tripwire(10.0, lambda error: 1.0),
    "6 lengths, tripwire at 10": lambda: Tripwire(10.0, _length(6)),
    "default without a limit": lambda: Caution(most_error=math.inf),
}
FINALISTS = ("default", "lr=1.0", "1 / (1 + error)")


class Tried(FedMPDD):
    """The strategy with another rule."""

    def __init__(self, rule: Rule, **options: Any) -> None:
        super().__init__(**options)
        self._rule = rule
        self.shares: list[float] = []

    def _begin(self, arrays: ArrayRecord) -> None:
        super()._begin(arrays)
        self._caution: Any = self

    def _take_step(self, k: int, contributions: list[Contribution]) -> bool:
        if isinstance(self._rule, Growth):
            self._rule.magnitude = lower_median([one.magnitude for one in contributions])
        return super()._take_step(k, contributions)

    def share(self, estimate: Float32, error: float) -> float:
        """See Rule."""
        self.shares.append(self._rule.share(estimate, error))
        return self.shares[-1]

    def remember(self, estimate: Float32, error: float, factor: float) -> None:
        """See Rule."""
        self._rule.remember(estimate, error, factor)


class Case(NamedTuple):
    """One training."""

    rule: str
    codec: str
    nodes: int
    steps: int
    seed: int


class Outcome(NamedTuple):
    """Accuracy after every round, and how much of each step was taken."""

    accuracy: list[float]
    shares: list[float]


def train(case: Case) -> Outcome:
    """Run all rounds."""
    torch.manual_seed(16 + case.seed)  # seed 1 is the app's own model
    model, test = task.make_model("small"), task.load_test("small")
    strategy = Tried(RULES[case.rule](), codec=case.codec, seed=case.seed, fraction_evaluate=0.0)
    accuracy: list[float] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        model.load_state_dict(arrays.to_torch_state_dict())
        if number:
            accuracy.append(task.evaluate(model, test)[1])
        return None

    grid = InProcessGrid(client_app.app, case.nodes)
    for node, context in grid.contexts.items():
        context.node_config = {"partition-id": node, "num-partitions": case.nodes}
        context.run_config = {"model": "small"}
    config = ConfigRecord({"local-steps": case.steps, "batch": BATCH, "lr": LR})
    with mock.patch("fedmpdd.flower.mod.secrets.randbits", random.Random(case.seed).getrandbits):
        strategy.start(
            grid, ArrayRecord(model.state_dict()), num_rounds=ROUNDS, train_config=config, evaluate_fn=evaluate
        )
    return Outcome(accuracy, strategy.shares)


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.1f}{spread}"


def table(results: dict[Case, Outcome], rules: list[str], cells: list[tuple[str, int, int]], seeds: int) -> str:
    """Return accuracies in percent after the last round as Markdown: means and deviations over seeds."""
    titles = [
        f"{nodes} nodes, {codec.split(':')[1].replace('=', ' = ') if ':' in codec else codec}"
        + (f", {steps} local steps" if steps != 20 else "")
        for codec, nodes, steps in cells
    ]
    lines = [f"| rule | {' | '.join(titles)} |", "| --- |" + " --- |" * len(cells)]
    for rule in rules:
        row = []
        for cell in cells:
            done = [results.get(Case(rule, *cell, seed)) for seed in range(1, seeds + 1)]
            row.append(_cell([one.accuracy[-1] for one in done if one is not None]))
        lines.append(f"| {rule} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("steps"), help="folder for steps.jsonl and steps.md")
    parser.add_argument("--rules", default=";".join(FINALISTS), help='rules, separated by semicolons, or "all"')
    parser.add_argument("--cells", choices=CELLS, default="table", help="of the table: all, with two nodes, or others")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    task.load_train = functools.cache(task.load_train)
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / "steps.jsonl"
    results: dict[Case, Outcome] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        *case, accuracy, shares = json.loads(line)
        results[Case(*case)] = Outcome(accuracy, shares)
    rules = list(RULES) if arguments.rules == "all" else arguments.rules.split(";")
    cells = CELLS[arguments.cells]
    with log.open("a", encoding="utf-8") as file:
        for seed in range(1, arguments.seeds + 1):
            for rule in rules:
                for cell in cells:
                    case = Case(rule, *cell, seed)
                    if case not in results:
                        results[case] = train(case)
                        file.write(json.dumps([*case, *results[case]], ensure_ascii=False) + "\n")
                        file.flush()
    text = table(results, rules, cells, arguments.seeds)
    (arguments.out / f"steps-{arguments.cells}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
