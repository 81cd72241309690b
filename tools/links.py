"""What unequal links are worth: the tables and the picture of docs/results/links.md.

    python tools/links.py --out links                 # every training, an hour or less; goes on where it was stopped
    python tools/links.py --out links --seeds 1       # one seed each
    python tools/links.py --out links --write         # the same, and docs/results/links.json and links.png from them

Sixty clients train softmax regression on the bundled digits. A third of them has a link for 9 bytes an update, a third
one for 36, a third one for 144. An arm is who takes part, with which codecs and weights. At every budget an arm has the
step size of five that is best there, chosen with two seeds that are not counted. Each training is one line of a file.
"""

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

import fedmpdd as fm
from fedmpdd.documents import write_json
from fedmpdd.tasks.data import load

CLIENTS, BATCH, D = 60, 8, 7_850
SMALL, MIDDLE, LARGE = "peaks:m=7", "peaks:m=35:group=128", "peaks:m=190:group=32"  # 9, 36 and 144 bytes
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
CHOOSING, SEEDS = (1000, 1001), (1, 2, 3, 4, 5)
PAYLOAD = 94_500  # bytes of all updates of a training: a hundred rounds of five clients of each link
OVERHEAD = 18  # bytes of a message on the socket beside the update: MQTT's publication and its acknowledgement
RESULTS = Path(__file__).parents[1] / "docs" / "results"


class Arm(NamedTuple):
    """Who takes part, and how: links of the clients in turn, which thirds of all clients, and for how long."""

    links: tuple[str, ...]
    thirds: tuple[int, ...]
    per_round: int
    rounds: int
    spread: float | str = "middle"


ARMS = {
    "mixed": Arm((SMALL, MIDDLE, LARGE), (0, 1, 2), 15, 100, "middle"),
    "mixed, spread 1": Arm((SMALL, MIDDLE, LARGE), (0, 1, 2), 15, 100, 1.0),
    "mixed, spread 120": Arm((SMALL, MIDDLE, LARGE), (0, 1, 2), 15, 100, 120.0),
    "mixed, equal weights": Arm((SMALL, MIDDLE, LARGE), (0, 1, 2), 15, 100, "inf"),
    "all small, 15 a round": Arm((SMALL,), (0, 1, 2), 15, 700),
    "all small, 60 a round": Arm((SMALL,), (0, 1, 2), 60, 175),
    "without the slow": Arm((MIDDLE, LARGE), (1, 2), 10, 115),
    "the fast alone": Arm((LARGE,), (2,), 7, 110),
}
SETTINGS = {
    "iid": "digits dealt out at random",
    "two classes": "two digits a client, whatever its link",
    "own digits": "clients of slow links hold 0, 1 and 2, which nobody else has",
}


class Digits(NamedTuple):
    """The bundled digits: pixels and labels, to train and to test with."""

    pixels: torch.Tensor
    labels: torch.Tensor
    test_pixels: torch.Tensor
    test_labels: torch.Tensor

    @classmethod
    def load(cls) -> "Digits":
        """Read them, with pixels of mean 0 and deviation 1."""
        digits = load("mnist-5k")
        parts: list[torch.Tensor] = []
        for part in (digits.train, digits.test):
            parts.append(torch.tensor((part.images / 255 - 0.1307) / 0.3081, dtype=torch.float32).flatten(1))
            parts.append(torch.tensor(part.labels))
        return cls(*parts)


def holdings(setting: str, labels: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return which examples each client holds; client i has link i mod 3, and link 0 is the slow one."""
    rng = np.random.default_rng(2024)
    order = rng.permutation(len(labels))
    if setting == "iid":
        return np.array_split(order, CLIENTS)
    if setting == "two classes":  # 120 shards of one digit or two, two for each client
        by_digit = order[np.argsort(labels[order], kind="stable")]
        shards = np.array_split(by_digit, 2 * CLIENTS)
        dealt = rng.permutation(2 * CLIENTS)
        return [np.concatenate([shards[a], shards[b]]) for a, b in dealt.reshape(CLIENTS, 2)]
    slow = labels[order] < 3
    slow_parts = iter(np.array_split(order[slow], CLIENTS // 3))
    others = iter(np.array_split(order[~slow], CLIENTS - CLIENTS // 3))
    return [next(slow_parts) if client % 3 == 0 else next(others) for client in range(CLIENTS)]


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the share of digits that are told."""
    return (outputs.argmax(1) == targets).float().mean()


def task_of(digits: Digits, setting: str, arm: Arm) -> fm.Task:
    """Return the task of an arm: the digits of those who take part, in an order in which link i mod count fits."""
    held = holdings(setting, digits.labels.numpy())
    clients = [client for client in range(CLIENTS) if client % 3 in arm.thirds]
    data = [(digits.pixels[held[client]], digits.labels[held[client]]) for client in clients]
    return fm.Task(
        model=torch.nn.Linear(784, 10),
        loss=torch.nn.functional.cross_entropy,
        metrics={"accuracy": accuracy},
        clients=data,
        test=(digits.test_pixels, digits.test_labels),
    )


def train(digits: Digits, setting: str, name: str, lr: float, seed: int) -> dict[str, Any]:
    """Return a training as it is kept: where it stood after which bytes."""
    arm = ARMS[name]
    settings: dict[str, Any] = {}
    if len(arm.links) > 1:
        settings = {"links": list(arm.links), "link_spread": arm.spread}
    history = fm.simulate(
        task_of(digits, setting, arm),
        arm.links[0],
        rounds=arm.rounds,
        per_round=arm.per_round,
        batch=BATCH,
        lr=lr,
        seed=seed,
        keys="derived",
        evaluate_every=max(1, arm.rounds // 25),
        progress=False,
        **settings,
    )
    curve = [
        [row["rounds"], row["payload_bytes"], row["updates"], round(row["accuracy"], 4)]
        for row in history.as_rows()
        if row["accuracy"] is not None
    ]
    return {"setting": setting, "arm": name, "lr": lr, "seed": seed, "curve": curve}


def predicted(name: str) -> list[float]:
    """Return what follows of an arm before anything is trained: bytes a round, those on a socket, error of the mean.

    The error is E‖decoded mean − weighted mean gradient‖² / ‖gradient‖² of a round with as many clients of each link.
    """
    arm = ARMS[name]
    config = fm.load_config("demo", ["model=logistic", "codec.keys=derived", f"links={json.dumps(list(arm.links))}"])
    codecs = [one.codec.build() for one in config.of_links]
    of_each = arm.per_round / len(codecs)
    sizes = [codec.bytes_per_update(D) for codec in codecs]
    stated = [float(codec.variance(D) or 0) for codec in codecs]
    spread = (min(stated) * max(stated)) ** 0.5 if arm.spread == "middle" else float(arm.spread)
    trusts = [1.0 if spread == float("inf") else 1 / (variance + spread) for variance in stated]
    weights = [trust / sum(trusts) for trust in trusts]
    error = sum(w * w * variance for w, variance in zip(weights, stated, strict=True)) / of_each
    payload = of_each * sum(sizes)
    return [payload, payload + OVERHEAD * arm.per_round, error]


def reached(curve: list[list[float]], budget: float, unit: str) -> float:
    """Return the accuracy of the last look within a budget: payload bytes, socket bytes or rounds."""
    spent = {
        "payload": lambda row: row[1],
        "socket": lambda row: row[1] + OVERHEAD * row[2],
        "rounds": lambda row: row[0],
    }[unit]
    return float([row for row in curve if spent(row) <= 1.01 * budget][-1][3])


class Trainings:
    """What was trained, one line each; the same call trains what is missing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.exists() else []
        self._rows: dict[tuple[str, str, float, int], dict[str, Any]] = {}
        for line in lines:
            try:
                row = json.loads(line)
            except ValueError:  # torn off while it was written
                continue
            self._rows[row["setting"], row["arm"], row["lr"], row["seed"]] = row
        self._digits = Digits.load()

    def curve(self, setting: str, arm: str, lr: float, seed: int) -> list[list[float]]:
        """Return the curve of a training, which is trained if it was not."""
        key = (setting, arm, lr, seed)
        if key not in self._rows:
            self._rows[key] = train(self._digits, *key)
            with self._path.open("a") as file:
                file.write("\n" + json.dumps(self._rows[key]))
        return self._rows[key]["curve"]  # type: ignore[no-any-return]

    def chosen(self, setting: str, arm: str, budget: tuple[float, str]) -> float:
        """Return the step size that an arm gets for a budget."""

        def score(lr: float) -> float:
            return statistics.mean(reached(self.curve(setting, arm, lr, seed), *budget) for seed in CHOOSING)

        return max(RATES, key=score)


BUDGETS = {
    "a quarter of the payload": (PAYLOAD / 4, "payload"),
    "equal payload": (PAYLOAD, "payload"),
    "equal socket bytes": (PAYLOAD + OVERHEAD * 1500, "socket"),
    "equal rounds": (100, "rounds"),
}


def results(trainings: Trainings, seeds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for every setting and arm: for every budget its step size, and its accuracies seed by seed."""
    for setting in SETTINGS:
        for arm in ARMS:
            rates = {name: trainings.chosen(setting, arm, budget) for name, budget in BUDGETS.items()}
            curves = {
                lr: [trainings.curve(setting, arm, lr, seed) for seed in SEEDS[:seeds]] for lr in set(rates.values())
            }
            at = {name: [reached(one, *BUDGETS[name]) for one in curves[lr]] for name, lr in rates.items()}
            print(f"{setting:12} {arm:22}", *(f"{statistics.mean(row):.3f}" for row in at.values()), flush=True)
            yield {
                "setting": setting,
                "arm": arm,
                "lr": rates,
                "accuracy": at,
                "curves": curves[rates["equal payload"]],
            }


def table(rows: list[dict[str, Any]], setting: str) -> str:
    """Return one setting as the table of the page."""
    lines = ["| arm | " + " | ".join(BUDGETS) + " |", "| --- |" + " --- |" * len(BUDGETS)]
    for row in rows:
        if row["setting"] == setting:
            cells = [
                f"{statistics.mean(one):.3f} ± {statistics.stdev(one):.3f} ({row['lr'][name]})"
                for name, one in row["accuracy"].items()
            ]
            lines.append(f"| {row['arm']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy against payload bytes, the mean of all seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    arms = ("mixed", "mixed, equal weights", "all small, 60 a round", "without the slow", "the fast alone")
    figure, axes = plt.subplots(1, len(SETTINGS), figsize=(12, 3.6), sharey=True)
    for axis, setting in zip(axes, SETTINGS, strict=True):
        for row in rows:
            if row["setting"] == setting and row["arm"] in arms:
                curves = np.array(row["curves"])
                kilobytes = curves[:, :, 1].mean(axis=0) / 1000
                axis.plot(kilobytes, curves[:, :, 3].mean(axis=0), label=row["arm"], linewidth=1.2)
        axis.set_title(setting, fontsize=10)
        axis.set_xlabel("kB of updates, all clients together")
        axis.set_xlim(0, PAYLOAD / 1000)
        axis.set_ylim(0.4, 0.92)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test accuracy")
    axes[-1].legend(fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the trainings")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many seeds are counted")
    parser.add_argument("--write", action="store_true", help="write docs/results/links.json and links.png")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| arm | bytes a round | on a socket | error of its mean |\n| --- | --- | --- | --- |")
    for name in ARMS:
        payload, socket, error = predicted(name)
        print(f"| {name} | {payload:,.0f} | {socket:,.0f} | {error:.2f} |")
    rows = list(results(Trainings(asked.out / "trainings.jsonl"), asked.seeds))
    for setting, words in SETTINGS.items():
        print(f"\n{setting}: {words}\n\n{table(rows, setting)}" if asked.seeds > 1 else "")
    if asked.write:
        settings = {
            "clients": CLIENTS,
            "d": D,
            "batch": BATCH,
            "codecs": [SMALL, MIDDLE, LARGE],
            "payload_bytes": PAYLOAD,
        }
        arms = {name: {**arm._asdict(), "predicted": predicted(name)} for name, arm in ARMS.items()}
        write_json(RESULTS / "links.json", {**settings, "rates": RATES, "arms": arms, "rows": rows})
        draw(rows, RESULTS / "links.png")


if __name__ == "__main__":
    main()
