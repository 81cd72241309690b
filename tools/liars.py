"""Accuracy with lying nodes, through Flower's messages in one process: the table of docs/results/liars.md.

    python tools/liars.py --out liars            # everything, several minutes; goes on where it was stopped
    python tools/liars.py --out liars --codecs fedsgd --seeds 1

Ten nodes train softmax regression on the bundled digits for twenty rounds, ten local steps of batch 20 a round. The
last one or three of them lie. Liars that know the honest updates are asked last. Rivals are Flower's strategies on
whole models. Each training is one line of a file, so that what is done is not done again.
"""

import argparse
import json
import logging
import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum
from flwr.supercore.task_identity import TaskIdentity
from numpy.typing import NDArray

from fedmpdd.flower import FedMPDD, fedmpdd_mod
from fedmpdd.tasks.data import PartitionKind, load, make_partition

Float32 = NDArray[np.float32]

NODES, ROUNDS, LOCAL_STEPS, BATCH, LR = 10, 20, 10, 20, 0.02
FEATURES, CLASSES = 784, 10
D = (FEATURES + 1) * CLASSES

CODECS = (
    "auto",
    "mpdd:m=400:family=hadamard:keys=shared",
    "mpdd:m=400:keys=shared",
    "mpdd:m=400:bits=8:family=hadamard:keys=shared",
    "mpdd:m=400:bits=4:family=hadamard:keys=shared",
    "mpdd:m=400:bits=1:family=hadamard:keys=shared",
    "peaks:m=28:keys=shared",
    "randk:k=800:keys=shared",
    "eden:keys=shared",
    "mpdd:m=400",
    "mpdd:m=400:bits=1:family=hadamard",
    "mpdd:m=400:bits=1:family=hadamard:keys=partitioned",
    "peaks:m=28",
    "fedsgd",
    "qsgd:bits=4",
    "topk:k=400:error_feedback=true",
    "randk:k=800",
    "eden",
    "signsgd:error_feedback=true",
    "lp-proj:size=1000",
    "sa-fedlora:rank=4:warmup=5",
    "laplace:noise=0.000001",
    "gaussian:noise=0.000001",
)
RIVALS: dict[str, Callable[[int], FedAvg]] = {
    "Flower FedAvg": lambda liars: FedAvg(fraction_evaluate=0.0),
    "Flower FedMedian": lambda liars: FedMedian(fraction_evaluate=0.0),
    "Flower FedTrimmedAvg": lambda liars: FedTrimmedAvg(fraction_evaluate=0.0, beta=0.3),
    "Flower Krum": lambda liars: Krum(fraction_evaluate=0.0, num_malicious_nodes=max(1, liars)),
    "Flower MultiKrum": lambda liars: MultiKrum(
        fraction_evaluate=0.0, num_malicious_nodes=max(1, liars), num_nodes_to_select=NODES - max(1, liars)
    ),
    # Bulyan is for 4f + 3 nodes; with ten it is given one liar, whatever there are.
    "Flower Bulyan": lambda liars: Bulyan(fraction_evaluate=0.0, num_malicious_nodes=1),
}


class Knowledge(NamedTuple):
    """What a liar knows when it lies: its honest gradient, the honest ones of others, and a memory of its own."""

    gradient: Float32
    honest: Float32  # [honest nodes, d]
    memory: dict[str, Float32]


def _times(factor: float) -> Callable[[Knowledge], Float32]:
    return lambda knowledge: np.float32(factor) * knowledge.gradient


def _constant(knowledge: Knowledge) -> Float32:
    return np.full_like(knowledge.gradient, 100 * np.abs(knowledge.gradient).mean())


def _replayed(knowledge: Knowledge) -> Float32:
    return knowledge.memory.setdefault("first", knowledge.gradient)


def _little(knowledge: Knowledge) -> Float32:
    """A little is enough (Baruch et al. 2019): one and a half deviations off the mean, against its sign."""
    mean = knowledge.honest.mean(axis=0)
    return np.asarray(mean - 1.5 * knowledge.honest.std(axis=0) * np.sign(mean), dtype=np.float32)


def _inner(knowledge: Knowledge) -> Float32:
    """Inner-product manipulation (Xie et al. 2020): the honest mean, turned round."""
    return np.asarray(-knowledge.honest.mean(axis=0), dtype=np.float32)


LIES: dict[str, Callable[[Knowledge], Float32]] = {
    "none": _times(1),
    "× −1": _times(-1),
    "× −10": _times(-10),
    "× −100": _times(-100),
    "× −999": _times(-999),
    "× 10⁶": _times(1e6),
    "constant": _constant,
    "replayed": _replayed,
    "1,000 × the examples, × −1": _times(-1),
    "a little is enough": _little,
    "inner product": _inner,
}
CLAIMS = {"1,000 × the examples, × −1": 1_000}


@dataclass
class Data:
    """Digits of all nodes, and the test digits."""

    inputs: Float32
    labels: NDArray[np.int64]
    test_inputs: Float32
    test_labels: NDArray[np.int64]
    nodes: list[NDArray[np.int64]] = field(default_factory=list)

    @classmethod
    def load(cls, kind: PartitionKind, classes: int, seed: int) -> "Data":
        """Deal out the bundled digits."""
        digits = load("mnist-5k")
        inputs, tests = (
            ((part.images.reshape(len(part.images), -1) / 255 - 0.1307) / 0.3081).astype(np.float32)
            for part in (digits.train, digits.test)
        )
        labels = digits.train.labels
        partition = make_partition(labels, NODES, kind=kind, seed=seed, classes_per_client=classes)
        nodes = [partition.examples_of(node) for node in range(NODES)]
        return cls(inputs, labels, tests, digits.test.labels, nodes)

    def gradient(self, flat: Float32, chosen: NDArray[np.int64]) -> Float32:
        """Return the gradient of the mean cross-entropy of softmax regression."""
        inputs, labels = self.inputs[chosen], self.labels[chosen]
        logits = inputs @ flat[:-CLASSES].reshape(FEATURES, CLASSES) + flat[-CLASSES:]
        shares = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        shares[np.arange(len(labels)), labels] -= 1
        shares /= len(labels)
        return np.concatenate([(inputs.T @ shares).reshape(-1), shares.sum(axis=0)]).astype(np.float32)

    def accuracy(self, flat: Float32) -> float:
        """Return the share of test digits that the model gets right; one that is not finite gives one class."""
        logits = self.test_inputs @ flat[:-CLASSES].reshape(FEATURES, CLASSES) + flat[-CLASSES:]
        return float((np.nan_to_num(logits).argmax(axis=1) == self.test_labels).mean())


class LyingGrid(Grid):
    """Ten nodes in this process, of which the last lie."""

    def __init__(self, data: Data, liars: int, lie: str, seed: int) -> None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self._data, self._liars, self._lie, self._seed = data, liars, lie, seed
        self._honest: list[Float32] = []
        self._memories: list[dict[str, Float32]] = [{} for _ in range(NODES)]
        self._contexts = [
            Context(run_id=1, node_id=node, node_config={"node": node}, state=RecordDict(), run_config={})
            for node in range(NODES)
        ]
        self._app = ClientApp()
        self._app.train(mods=[fedmpdd_mod])(self._train)

    def _train(self, message: Message, context: Context) -> Message:
        node = int(context.node_config["node"])
        number = int(message.content.config_records["config"]["server-round"])  # type: ignore[arg-type]
        start = message.content.array_records["arrays"]["model"].numpy().reshape(-1)
        rng = np.random.default_rng([self._seed, number, node])
        flat = start.copy()
        for _ in range(LOCAL_STEPS):
            chosen = rng.choice(self._data.nodes[node], min(BATCH, len(self._data.nodes[node])), replace=False)
            flat -= np.float32(LR) * self._data.gradient(flat, chosen)
        gradient, examples = start - flat, len(self._data.nodes[node])
        if node < NODES - self._liars:
            self._honest.append(gradient)
        else:
            gradient = LIES[self._lie](Knowledge(gradient, np.stack(self._honest), self._memories[node]))
            examples *= CLAIMS.get(self._lie, 1)
        shape = message.content.array_records["arrays"]["model"].shape
        arrays = ArrayRecord({"model": Array((start - gradient).astype(np.float32).reshape(shape))})
        metrics = MetricRecord({"num-examples": examples})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Run the nodes in their order."""
        self._honest = []
        ordered = sorted(messages, key=lambda message: message.metadata.dst_node_id)
        return [self._app(message, self._contexts[message.metadata.dst_node_id]) for message in ordered]

    def get_node_ids(self) -> Iterable[int]:
        """Return the numbers of the nodes."""
        return range(NODES)

    def set_run(self, run: Any) -> None:
        """Not used here."""

    @property
    def run(self) -> Any:
        """Not used here."""
        return None

    def create_message(self, *args: Any, **options: Any) -> Message:
        """Not used here."""
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Not used here."""
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Not used here."""
        raise NotImplementedError


class Case(NamedTuple):
    """One training."""

    strategy: str  # a codec, or the name of a rival
    mean: str  # "robust" or "plain"
    partition: str  # "iid", "1 class" or "2 classes"
    liars: int
    lie: str
    seed: int


def train(case: Case) -> float:
    """Return the accuracy after all rounds."""
    kind = PartitionKind.IID if case.partition == "iid" else PartitionKind.CLASSES
    data = Data.load(kind, 1 if case.partition == "1 class" else 2, case.seed)
    # One array of 10 × 785 numbers: SA-FedLora needs a matrix, and Flower's strategies take anything.
    arrays = ArrayRecord({"model": Array(np.zeros((785, CLASSES), np.float32))})
    strategy: FedAvg
    if case.strategy in RIVALS:
        strategy = RIVALS[case.strategy](case.liars)
    else:
        options: dict[str, Any] = {"robust": case.mean == "robust", "fraction_evaluate": 0.0, "seed": case.seed}
        strategy = FedMPDD(codec=case.strategy, lr=1.0, **options)
    grid = LyingGrid(data, case.liars, case.lie, case.seed)
    accuracy = 0.0

    def evaluate(number: int, current: ArrayRecord) -> MetricRecord | None:
        nonlocal accuracy
        if number == ROUNDS:
            accuracy = data.accuracy(current["model"].numpy().reshape(-1))
        return None

    strategy.start(grid, arrays, num_rounds=ROUNDS, train_config=ConfigRecord({}), evaluate_fn=evaluate)
    return accuracy


def cases(strategies: list[str], seeds: int) -> Iterator[Case]:
    """Yield all trainings of the table."""
    for strategy in strategies:
        means = ["plain"] if strategy in RIVALS else ["robust", "plain"]
        for seed in range(1, seeds + 1):
            for mean in means:
                for partition in ("iid", "2 classes", "1 class"):
                    yield Case(strategy, mean, partition, 0, "none", seed)
                for liars in (1, 3):
                    for lie in LIES if mean == "robust" or strategy in RIVALS else ("× −1", "× −10"):
                        if lie != "none":
                            yield Case(strategy, mean, "iid", liars, lie, seed)


def table(results: dict[Case, float], strategies: list[str]) -> str:
    """Return the table as Markdown: means over seeds, the worst lie by name."""
    lines = [
        "| strategy or codec | mean | no liar | one liar, worst | three liars, worst | 2 classes a node | 1 class |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for strategy in strategies:
        for mean in ("robust", "plain"):
            group = {case: value for case, value in results.items() if (case.strategy, case.mean) == (strategy, mean)}
            if not group:
                continue

            def average(partition: str, liars: int, lie: str, group: dict[Case, float] = group) -> float:
                values = [v for c, v in group.items() if (c.partition, c.liars, c.lie) == (partition, liars, lie)]
                return statistics.fmean(values) if values else math.nan

            row = [f"{average('iid', 0, 'none'):.3f}"]
            for liars in (1, 3):
                tried = {lie: average("iid", liars, lie) for lie in LIES if lie != "none"}
                tried = {lie: value for lie, value in tried.items() if not math.isnan(value)}
                worst = min(tried, key=lambda lie: tried[lie]) if tried else "–"
                row.append(f"{tried[worst]:.3f} ({worst})" if tried else "–")
            row += [f"{average(partition, 0, 'none'):.3f}" for partition in ("2 classes", "1 class")]
            lines.append(f"| {strategy} | {mean if strategy not in RIVALS else '–'} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def by_lie(results: dict[Case, float], strategies: Iterable[str], liars: int) -> str:
    """Return a table with a row per lie and a column per strategy, means over seeds."""
    shown = [name for name in strategies if any(case.strategy == name for case in results)]
    lines = [f"| {liars} of {NODES} | {' | '.join(shown)} |", "| --- |" + " --- |" * len(shown)]
    for lie in LIES:
        cells = []
        for name in shown:
            mean = "plain" if name in RIVALS else "robust"
            wanted = (name, mean, "iid", 0 if lie == "none" else liars, lie)
            values = [value for case, value in results.items() if case[:5] == wanted]
            cells.append(f"{statistics.fmean(values):.3f}" if values else "–")
        lines.append(f"| {lie if lie != 'none' else 'no liar'} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def summary(results: dict[Case, float]) -> list[dict[str, Any]]:
    """Return a row per case without its seed: mean and deviation over seeds."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for case, value in results.items():
        groups.setdefault(case[:5], []).append(value)
    return [
        {
            **dict(zip(Case._fields, group, strict=False)),
            "seeds": len(values),
            "accuracy": statistics.fmean(values),
            "sd": statistics.stdev(values) if len(values) > 1 else None,
        }
        for group, values in sorted(groups.items())
    ]


BY_LIE = ("auto", "mpdd:m=400:family=hadamard:keys=shared", "peaks:m=28:keys=shared", *RIVALS)


def main() -> None:
    """Train what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("liars"), help="folder for liars.jsonl and liars.md")
    parser.add_argument("--codecs", default=",".join((*CODECS, *RIVALS)), help="comma-separated codecs and rivals")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    arguments.out.mkdir(parents=True, exist_ok=True)
    log = arguments.out / "liars.jsonl"
    results: dict[Case, float] = {}
    for line in log.read_text(encoding="utf-8").splitlines() if log.exists() else ():
        values = json.loads(line)
        results[Case(*values[:-1])] = values[-1]
    strategies = arguments.codecs.split(",")
    with log.open("a", encoding="utf-8") as file:
        for case in cases(strategies, arguments.seeds):
            if case not in results:
                results[case] = train(case)
                file.write(json.dumps([*case, results[case]], ensure_ascii=False) + "\n")
                file.flush()
    text = "\n".join([table(results, strategies), by_lie(results, BY_LIE, 1), by_lie(results, BY_LIE, 3)])
    (arguments.out / "liars.md").write_text(text, encoding="utf-8")
    (arguments.out / "liars.json").write_text(json.dumps(summary(results), indent=1) + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
