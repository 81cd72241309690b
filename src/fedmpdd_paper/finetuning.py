"""Fine-tuning of a pretrained language model, measured: codecs side by side, each with step sizes of its own.

OUT/STUDY/tries/ROW-lr-LR/             one seed with every step size; the best on the dev sentences is chosen
OUT/STUDY/runs/ROW-seed-SEED/          the others with that one; run folders go on where they ended
OUT/STUDY/runs/ROW-seed-SEED.test.json accuracy on the test sentences, which are looked at once, at the end
OUT/STUDY/runs/ROW.cost.json           milliseconds of a round and memory of a client, where there is a GPU
OUT/STUDY/results.json, table.md, curves.png, report.html
"""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

import fedmpdd as fm
from fedmpdd.documents import read_json, write_json, write_text
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.front.callbacks import Callback, Training
from fedmpdd.report import Goals, collect, write_report
from fedmpdd.runs.history import History
from fedmpdd.simulation import RunConfig, client_work, federation_of
from fedmpdd_paper.pictures import draw_curves
from fedmpdd_paper.summaries import over_seeds
from fedmpdd_paper.table_text import short_bytes, three_digits
from fedmpdd_paper.tables import SEEDS, read_shipped, shipped_names
from fedmpdd_paper.trainings import OnRound, Workspace

FIRST_TRY = 1  # the seed of step sizes that are tried; none of those that count
PARTS = 256  # test sentences at a time
ROUNDS_TIMED = 20
REMEDY = "delete it, and run the same command again"


@dataclass(frozen=True)
class Row:
    """One way to send updates, and the step sizes to choose from: of the server, or what `tuned` names."""

    name: str
    codec: str
    lrs: tuple[float, ...]
    seeds: int
    settings: Mapping[str, Any]


@dataclass(frozen=True)
class FineTuning:
    """What is fine-tuned on what, and how.

    dataset: a name of `fm.text.load`. model, layers, rank: of the pretrained model, its first blocks and the adapters.
    template, words: of a prompt; no words stand for a head of as many classes as there are.
    settings: of all rows, as of `fm.simulate`.
    """

    name: str
    title: str
    dataset: str
    model: str
    rank: int
    clients: int
    settings: Mapping[str, Any]
    rows: tuple[Row, ...]
    layers: int | None = None
    length: int = 96
    template: str = "{sentence}"
    words: tuple[str, ...] = ()
    targets: tuple[float, ...] = ()

    def config(self, task: fm.Task, row: Row, seed: int, lr: float, device: str) -> RunConfig:
        """Return the config of one training."""
        settings = {"device": device, **self.settings, **row.settings}
        settings[settings.pop("tuned", "lr")] = lr
        return fm.run_config(task, row.codec, seed=seed, **settings)


def finetuning_names() -> list[str]:
    """Return the names of all studies of fine-tuning."""
    return shipped_names("finetuning")


def load_finetuning(name: str) -> FineTuning:
    """Read a study's file."""
    values = read_shipped("finetuning", name)
    default, seeds = values.pop("lrs"), values.pop("seeds")
    rows = tuple(
        Row(
            row.pop("name"),
            row.pop("codec"),
            tuple(row.pop("lrs", default)),
            row.pop("seeds", seeds),
            row,
        )
        for row in values.pop("rows")
    )
    lists: dict[str, Any] = {key: tuple(values.pop(key)) for key in ("words", "targets") if key in values}
    return FineTuning(name=name, rows=rows, **lists, **values)


@dataclass(frozen=True)
class Loaded:
    """The task, tested on dev sentences, and the test sentences."""

    task: fm.Task
    test: tuple[Any, ...]
    d: int


def load(study: FineTuning, workspace: Workspace) -> Loaded:
    """Load model and sentences of a study."""
    data = fm.text.load(study.dataset, workspace.data_dir)
    if data.dev is None:
        raise ConfigError(f"dataset = {study.dataset!r} has no dev sentences, by which step sizes are chosen")
    is_gpu = workspace.device == "cuda" or (workspace.device == "auto" and torch.cuda.is_available())
    classes = None if study.words else len(data.train.classes)
    base, tokenizer = fm.load_pretrained(
        study.model, layers=study.layers, dtype=torch.bfloat16 if is_gpu else torch.float32, classes=classes
    )
    encoder = fm.text.Sentences(tokenizer, length=study.length, too_long="cut")
    if study.words:
        encoder = fm.text.Prompt(tokenizer, study.words, study.template, length=study.length, too_long="cut")
    head = () if classes is None else ("score",)

    def model() -> Any:
        return encoder.model(fm.lora(base, study.rank, head=head, seed=None))

    task = fm.Task(
        model=model,
        clients=fm.partition(encoder.examples(data.train), study.clients),
        test=encoder.examples(data.dev),
    )
    return Loaded(task, encoder.examples(data.test), fm.torch.count_trained(model()))


def reproduce_finetuning(
    study: FineTuning,
    workspace: Workspace,
    *,
    seeds: int = len(SEEDS),
    rows: Sequence[str] | None = None,
    together: int = 8,
    on_round: OnRound | None = None,
) -> dict[str, Any]:
    """Run what is missing of a study, write its results, and return them.

    Args:
        study: what to run.
        workspace: where.
        seeds: at most so many of the paper's five, where a row has more.
        rows: the codecs or names of some rows; those that are done stay in the results.
        together: trainings that go on side by side.
        on_round: is told of every round.

    """
    loaded = load(study, workspace)
    chosen = [row for row in study.rows if rows is None or row.name in rows or row.codec in rows]
    if not chosen:
        raise ConfigError(f"no row {rows!r} in {study.name}; rows are {', '.join(row.codec for row in study.rows)}")
    folder = workspace.out / study.name
    shared: dict[str, Any] = {"task": loaded.task, "together": together, "progress": False}

    tries = {
        f"{slug(row.name)}-lr-{lr:g}": study.config(loaded.task, row, FIRST_TRY, lr, workspace.device)
        for row in chosen
        for lr in row.lrs
    }
    showing = [_shown(study.name, tries, on_round)]
    tried = fm.train_together(tries, out=folder / "tries", callbacks=showing, **shared)
    best = {row.name: _best(row, tried) for row in chosen}

    configs = {
        run_name(row, seed): study.config(loaded.task, row, seed, best[row.name], workspace.device)
        for row in chosen
        for seed in SEEDS[: min(seeds, row.seeds)]
    }
    tests = folder / "runs"
    after = _TestAtEnd(configs, loaded, tests)
    showing = [_shown(study.name, configs, on_round), after]
    histories = fm.train_together(configs, out=tests, callbacks=showing, **shared)
    for name in configs:
        if not histories[name].diverged and not after.path(name).is_file():  # it was killed between the two
            after.keep(name, fm.train(configs[name], task=loaded.task, out=tests / name, progress=False).model)

    done = [_row(study, row, best[row.name], loaded, tests, histories, seeds, workspace.device) for row in chosen]
    results = _with_earlier(
        study,
        folder / "results.json",
        {
            "study": study.name,
            "title": study.title,
            "d": loaded.d,
            "clients": study.clients,
            "targets": list(study.targets),
            "rows": done,
        },
    )
    write_json(folder / "results.json", results)
    write_text(folder / "table.md", finetuning_text(results))
    paths = [[tests / name for name in row["runs"]] for row in results["rows"]]
    draw_curves(folder / "curves.png", study.title, [{"method": r["name"], **r} for r in results["rows"]], paths)
    pages = collect([path for some in paths for path in some])
    write_report(folder / "report.html", pages, Goals(list(study.targets), []))
    return results


def slug(name: str) -> str:
    """Return a name as that of a folder."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-")


def run_name(row: Row, seed: int) -> str:
    """Return the name of a run folder."""
    return f"{slug(row.name)}-seed-{seed}"


def _best(row: Row, tried: Mapping[str, History]) -> float:
    """The step size with the highest accuracy on dev sentences, over the last two evaluations."""

    def score(lr: float) -> float:
        history = tried[f"{slug(row.name)}-lr-{lr:g}"]
        last = [entry.accuracy or 0.0 for entry in history.evaluations[-2:]]
        return -1.0 if history.diverged or not last else sum(last) / len(last)

    return max(row.lrs, key=score)


class _TestAtEnd(Callback):
    """Measures a trained model on the test sentences, and writes that beside its folder."""

    def __init__(self, configs: Mapping[str, RunConfig], loaded: Loaded, folder: Path) -> None:
        self._configs, self._loaded, self._folder = configs, loaded, folder

    def end(self, training: Training) -> None:
        if training.is_complete:
            config = training.federation.config
            name = next(name for name, one in self._configs.items() if _is_same(one, config))
            self.keep(name, training.federation.trained_model)

    def keep(self, name: str, model: Any) -> None:
        """Measure a model, and write its accuracy."""
        device = "cuda" if torch.cuda.is_available() and self._configs[name].device != "cpu" else "cpu"
        write_json(self.path(name), {"accuracy": accuracy(model, self._loaded.test, device)})

    def path(self, name: str) -> Path:
        """Where the accuracy of a run is."""
        return self._folder / f"{name}.test.json"


def _is_same(one: RunConfig, other: RunConfig) -> bool:
    return one.model_copy(update={"device": other.device}) == other


def accuracy(model: torch.nn.Module, examples: tuple[Any, ...], device: str = "cpu") -> float:
    """Return the share of examples whose class a model finds."""
    *inputs, labels = examples
    order = inputs[-1].sum(dim=1).argsort()  # sentences of one length side by side
    model, right = model.eval().to(device), 0
    with torch.no_grad():
        for some in torch.split(order, PARTS):
            classes = model(*(leaf[some].to(device) for leaf in inputs)).argmax(dim=1).cpu()
            right += int((classes == labels[some]).sum())
    return right / len(labels)


def _shown(study: str, configs: Mapping[str, RunConfig], on_round: OnRound | None) -> Callback:
    total = sum(config.rounds for config in configs.values())
    return _AllRounds(functools.partial(on_round, f"{study}, {len(configs)} trainings") if on_round else None, total)


class _AllRounds(Callback):
    """Counts the rounds of all trainings."""

    def __init__(self, show: Any, total: int) -> None:
        self._show, self._total, self._done = show, total, 0

    def begin(self, training: Training) -> None:
        self._done += training.history.last.rounds

    def after_round(self, training: Training, metrics: Any) -> None:
        self._done += 1
        if self._show is not None:
            self._show(self._done, self._total, training.history.last.accuracy)


def _row(
    study: FineTuning,
    row: Row,
    lr: float,
    loaded: Loaded,
    tests: Path,
    histories: Mapping[str, History],
    seeds: int,
    device: str,
) -> dict[str, Any]:
    names = [run_name(row, seed) for seed in SEEDS[: min(seeds, row.seeds)]]
    of_seeds = [histories[name] for name in names]
    config = study.config(loaded.task, row, SEEDS[0], lr, device)
    work, clients = client_work(config), study.clients
    tested = [_tested(tests / f"{name}.test.json") for name in names]
    last = [history.last for history in of_seeds]
    return {
        "name": row.name,
        "codec": row.codec,
        "settings": dict(row.settings),
        "lr": lr,
        "lrs": list(row.lrs),
        "runs": names,
        "diverged": sum(history.diverged for history in of_seeds),
        "dev": over_seeds([history.final_accuracy for history in of_seeds]),
        "test": over_seeds(tested),
        "test_each": tested,
        "rounds": over_seeds([entry.rounds for entry in last]),
        "update_bytes": over_seeds([entry.payload_bytes / max(1, entry.updates) for entry in last]),
        "up_per_client": over_seeds([entry.payload_bytes / clients for entry in last]),
        "frames_up_per_client": over_seeds([entry.uplink_bytes / clients for entry in last]),
        "down_per_client": over_seeds([entry.downlink_bytes / clients for entry in last]),
        "forwards": work.forwards,
        "backwards": work.backwards,
        "keeps_activations": work.keeps_activations,
        **_measured_once(tests / f"{slug(row.name)}.cost.json", loaded, config),
    }


def _measured_once(path: Path, loaded: Loaded, config: RunConfig) -> dict[str, Any]:
    if path.is_file():
        return dict(read_json(path, REMEDY))
    costs = measured(loaded, config)
    if costs:
        write_json(path, costs)
    return costs


def measured(loaded: Loaded, config: RunConfig) -> dict[str, Any]:
    """Return what a round takes on a GPU: milliseconds, the codec's part of them, and the memory of one client.

    Memory is what one client that computes alone has at most, above the model that it was sent. Nothing is measured on
    a CPU, where memory is shared with everything else.

    Args:
        loaded: the task.
        config: of a training.

    """
    if config.device == "cpu" or not torch.cuda.is_available():
        return {}
    never = {"evaluate_every": config.rounds, "journal": None, "downlink": "model"}
    federation = federation_of(config.model_copy(update=never), loaded.task)
    rounds = [federation.run_round() for _ in range(ROUNDS_TIMED + 3)][3:]
    seconds = [entry.gradient_s + entry.encode_s + entry.decode_s for entry in rounds]
    codec = [entry.encode_s + entry.decode_s for entry in rounds]
    alone = {**never, "clients_per_round": 1, "gradients": "loop"}
    one = federation_of(config.model_copy(update=alone), loaded.task)
    one.run_round()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    one.run_round()
    return {
        "round_ms": 1_000 * median(seconds),
        "codec_share": median(codec) / median(seconds),
        "client_memory": torch.cuda.max_memory_allocated() - before,
    }


def _tested(path: Path) -> float | None:
    if not path.is_file():
        return None
    try:
        return float(read_json(path, REMEDY)["accuracy"])
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path} is damaged; {REMEDY}") from None


def _with_earlier(study: FineTuning, path: Path, now: dict[str, Any]) -> dict[str, Any]:
    """Add the rows that were measured earlier and not now, in the order of the study."""
    if not path.is_file():
        return now
    earlier = {row["name"]: row for row in read_json(path, REMEDY)["rows"]}
    rows = earlier | {row["name"]: row for row in now["rows"]}
    return {**now, "rows": [rows[row.name] for row in study.rows if row.name in rows]}


_COLUMNS = (
    "codec",
    "lr",
    "bytes an update",
    "rounds",
    "dev",
    "test",
    "up a client",
    "down a client",
    "passes",
    "memory",
    "times fewer",
)


def finetuning_text(results: dict[str, Any]) -> str:
    """The results as a table for people; bytes are payloads, as bare frames carry them."""
    lines = [
        f"# {results['title']}",
        "",
        f"d = {results['d']:,}, {results['clients']} clients. Bytes are those of bare frames, of a client on average.",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "| --- " * len(_COLUMNS) + "|",
    ]
    base = results["rows"][0]["up_per_client"]["mean"]
    for row in results["rows"]:
        up = row["up_per_client"]["mean"]
        lost = f", {row['diverged']} diverged" if row["diverged"] else ""
        lines.append(
            f"| {row['name']}{lost} | {row['lr']:g} | {row['update_bytes']['mean']:,.0f} "
            f"| {row['rounds']['mean']:,.0f} | {_percent(row['dev'])} | {_percent(row['test'])} | {short_bytes(up)} "
            f"| {short_bytes(row['down_per_client']['mean'])} | {row['forwards']} + {row['backwards']} "
            f"| {short_bytes(row['client_memory']) if 'client_memory' in row else '–'} "
            f"| {three_digits(base / up) if up else '–'} |"
        )
    return "\n".join([*lines, ""])


def _percent(values: Mapping[str, Any]) -> str:
    if values["mean"] is None:
        return "–"
    spread = "" if values["sd"] is None else f" ± {100 * values['sd']:.1f}"
    return f"{100 * values['mean']:.1f}{spread} % ({values['reached']})"
