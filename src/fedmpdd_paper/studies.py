"""What goes beyond the paper, measured: one federation, a few ways to run it, several seeds each.

OUT/STUDY/VARIANT/lr-LR-seed-SEED/   run folders; resumed if they are not done
OUT/STUDY/results.json, table.md     what was read off them
"""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmpdd.documents import write_json, write_text
from fedmpdd.errors import ConfigError
from fedmpdd.runs.history import History, Round
from fedmpdd.simulation import RunConfig, apply_overrides, parse_config
from fedmpdd_paper.jobs import executor, first_seed_then_others
from fedmpdd_paper.summaries import over_seeds, rank
from fedmpdd_paper.table_text import share, short_bytes, three_digits
from fedmpdd_paper.tables import SEEDS, read_shipped, shipped_names
from fedmpdd_paper.trainings import DONE, OnRound, Workspace, complete, read_training


@dataclass(frozen=True)
class Variant:
    """One way to run the federation: changes to the study's config, and the step sizes to choose from."""

    name: str
    changes: tuple[str, ...]
    lrs: tuple[float, ...]


@dataclass(frozen=True)
class Study:
    """What is run, and the accuracies whose price is read off."""

    name: str
    title: str
    values: dict[str, Any]
    targets: tuple[float, ...]
    variants: tuple[Variant, ...]

    def config(self, variant: Variant, seed: int, lr: float) -> RunConfig:
        """Return the config of one training."""
        values = apply_overrides(_copied(self.values), list(variant.changes))
        return parse_config({**values, "seed": seed, "lr": lr})


@dataclass(frozen=True)
class VariantRun:
    """One training, and the round at which it reached each target; None where it did not."""

    seed: int
    lr: float
    history: History
    reached: tuple[Round | None, ...]

    @property
    def rank(self) -> tuple[float, ...]:
        """Least is best."""
        return rank(self.reached, self.history.final_accuracy, self.history.diverged)


def study_names() -> list[str]:
    """Return the names of all studies."""
    return shipped_names("study")


def load_study(name: str) -> Study:
    """Read a study's config, and check every variant of it."""
    values = read_shipped("study", name)
    table = values.pop("study")
    default = table.get("lrs", [values.pop("lr", 0.1)])
    variants = tuple(
        Variant(each["name"], tuple(each.get("set", ())), tuple(each.get("lrs", default))) for each in table["variants"]
    )
    study = Study(name, table["title"], values, tuple(table["targets"]), variants)
    for variant in variants:
        try:
            study.config(variant, SEEDS[0], variant.lrs[0])
        except ConfigError as error:
            raise ConfigError(f"study {name}, {variant.name}: {error}") from None
    return study


def run_variant(
    study: Study,
    variant: Variant,
    seed: int,
    lr: float,
    workspace: Workspace,
    *,
    to_beat: int | None = None,
    on_round: OnRound | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> VariantRun:
    """Run what is missing of one training, until all targets are reached, and read it.

    to_beat: stop after so many rounds; another step size got there by then.
    """
    config = study.config(variant, seed, lr)
    last = min(config.rounds, to_beat or config.rounds)

    def reason_of(history: History) -> str | None:
        if history.diverged:
            return "diverged"
        is_there = bool(study.targets) and history.first_at(max(study.targets)) is not None
        return "" if is_there or history.last.rounds >= last else None

    folder = folder_of(study, variant, seed, lr, workspace.out)
    name = f"{study.name}, {variant.name}, lr {lr:g}, seed {seed}"
    complete(folder, config, name, workspace, reason_of, on_round, stopped)
    return read_variant(study, variant, seed, lr, workspace.out)


def choose_variant_lr(
    study: Study,
    variant: Variant,
    workspace: Workspace,
    *,
    on_round: OnRound | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> VariantRun:
    """Run the first seed with every step size, and return the best: fewest rounds to the hardest target reached."""
    best: VariantRun | None = None
    for lr in variant.lrs:
        hardest = best.reached[-1] if best is not None and best.reached else None
        to_beat = None if hardest is None else hardest.rounds
        tried = run_variant(
            study, variant, SEEDS[0], lr, workspace, to_beat=to_beat, on_round=on_round, stopped=stopped
        )
        best = tried if best is None or tried.rank < best.rank else best
    assert best is not None
    return best


def folder_of(study: Study, variant: Variant, seed: int, lr: float, out: Path) -> Path:
    """The run folder of one training."""
    words = re.sub(r"[^a-z0-9]+", "-", variant.name.lower()).strip("-")
    return out / study.name / words / f"lr-{lr:g}-seed-{seed}"


def read_variant(study: Study, variant: Variant, seed: int, lr: float, out: Path) -> VariantRun:
    """Read what there is of a training."""
    history = read_training(folder_of(study, variant, seed, lr, out))
    return VariantRun(seed, lr, history, tuple(history.first_at(target) for target in study.targets))


def variant_lr_that_won(study: Study, variant: Variant, out: Path) -> float | None:
    """Return the step size that `choose_variant_lr` chose, None if it has not tried all of them yet."""
    if not all((folder_of(study, variant, SEEDS[0], lr, out) / DONE).is_file() for lr in variant.lrs):
        return None
    return min((read_variant(study, variant, SEEDS[0], lr, out) for lr in variant.lrs), key=lambda run: run.rank).lr


def reproduce_study(
    study: Study, workspace: Workspace, *, seeds: int = len(SEEDS), jobs: int = 1, on_round: OnRound | None = None
) -> dict[str, Any]:
    """Run what is missing of a study, write its results, and return them."""
    with executor(jobs, on_round) as (pool, options):

        def first(i: int) -> Future[VariantRun]:
            return pool.submit(choose_variant_lr, study, study.variants[i], workspace, **options)

        def later(i: int, seed: int, chosen: VariantRun) -> Future[VariantRun]:
            return pool.submit(run_variant, study, study.variants[i], seed, chosen.lr, workspace, **options)

        runs = first_seed_then_others(len(study.variants), SEEDS[:seeds], first, later)
    results = {
        "study": study.name,
        "title": study.title,
        "targets": list(study.targets),
        "rows": [_row(study, variant, seeds_of) for variant, seeds_of in zip(study.variants, runs, strict=True)],
    }
    write_json(workspace.out / study.name / "results.json", results)
    write_text(workspace.out / study.name / "table.md", study_text(results))
    return results


def _row(study: Study, variant: Variant, runs: Sequence[VariantRun]) -> dict[str, Any]:
    def to_target(i: int, value: Callable[[Round], float]) -> dict[str, Any]:
        entries = [run.reached[i] for run in runs]
        return over_seeds([None if entry is None else value(entry) for entry in entries])

    ends = [run.history.last for run in runs]
    return {
        "variant": variant.name,
        "changes": list(variant.changes),
        "lr": runs[0].lr,
        "diverged": sum(run.history.diverged for run in runs),
        "final_accuracy": over_seeds([run.history.final_accuracy for run in runs]),
        "rounds": over_seeds([entry.rounds for entry in ends]),
        "up": over_seeds([entry.uplink_bytes for entry in ends]),
        "down": over_seeds([entry.downlink_bytes for entry in ends]),
        "to": [
            {
                "target": target,
                "rounds": to_target(i, lambda entry: entry.rounds),
                "up": to_target(i, lambda entry: entry.uplink_bytes),
                "down": to_target(i, lambda entry: entry.downlink_bytes),
                "both": to_target(i, lambda entry: entry.uplink_bytes + entry.downlink_bytes),
            }
            for i, target in enumerate(study.targets)
        ],
    }


def study_text(results: dict[str, Any]) -> str:
    """The results as a table for people; ratios are to the first row."""
    lines = [f"# {results['title']}", ""]
    for i, target in enumerate(results["targets"]):
        lines += [
            f"## To {target:.0%}",
            "",
            "| variant | lr | seeds there | rounds | up | down | both | times fewer |",
            "| --- " * 8 + "|",
        ]
        first = results["rows"][0]["to"][i]["both"]
        base = first["mean"] if first["reached"] == first["runs"] else None
        for row in results["rows"]:
            price = row["to"][i]
            there = f"{price['rounds']['reached']} of {price['rounds']['runs']}"
            if row.get("diverged"):
                there += f", {row['diverged']} diverged"
            if price["both"]["mean"] is None:
                accuracy = row["final_accuracy"]["mean"]
                ended = "–" if accuracy is None else f"ended at {accuracy:.1%}"
                lines.append(f"| {row['variant']} | {row['lr']:g} | {there} | {ended} | – | – | – | – |")
                continue
            sizes = " | ".join(short_bytes(price[part]["mean"]) for part in ("up", "down", "both"))
            whole = price["rounds"]["reached"] == price["rounds"]["runs"] and base is not None
            ratio = three_digits(base / price["both"]["mean"]) if whole else "–"
            rounds = f"{price['rounds']['mean']:,.0f}"
            if price["rounds"]["sd"] is not None:
                rounds += f" ± {price['rounds']['sd']:,.0f}"
            lines.append(f"| {row['variant']} | {row['lr']:g} | {there} | {rounds} | {sizes} | {ratio} |")
        lines.append("")
    if not results["targets"]:
        lines += ["| variant | lr | seeds | rounds | accuracy | up | down |", "| --- " * 7 + "|"]
        for row in results["rows"]:
            ended = row["final_accuracy"]
            accuracy = share(ended)
            sizes = " | ".join(short_bytes(row[part]["mean"]) for part in ("up", "down"))
            lines.append(
                f"| {row['variant']} | {row['lr']:g} | {ended['runs']} | {row['rounds']['mean']:,.0f} | {accuracy} "
                f"| {sizes} |"
            )
        lines.append("")
    return "\n".join(lines)


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    return {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
