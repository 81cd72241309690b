"""What goes beyond the paper, measured: one federation, a few ways to run it, several seeds each.

OUT/STUDY/VARIANT/lr-LR-seed-SEED/   run folders; resumed if they are not done
OUT/STUDY/results.json, table.md     what was read off them
"""

import math
import re
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from fedmpdd.errors import CodecError, ConfigError, GradientError, InputError
from fedmpdd.runs.folders import Run, read_metrics, write_json, write_text
from fedmpdd.simulation.config import RunConfig, apply_overrides, parse_config
from fedmpdd.simulation.engine import RoundMetrics
from fedmpdd_paper.jobs import executor, first_seed_then_others
from fedmpdd_paper.reading import summarise
from fedmpdd_paper.table_text import short_bytes, three_digits
from fedmpdd_paper.tables import SEEDS
from fedmpdd_paper.trainings import DONE, OnRound, Place, StoppedError, check_config, check_rounds, open_run

_FOLDER = "studies"


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
class Price:
    """What an accuracy took: rounds, and bytes of whole messages, all clients together."""

    rounds: int
    up: int
    down: int


@dataclass(frozen=True)
class VariantRun:
    """One training: the price of every target, None where it was not reached."""

    seed: int
    lr: float
    rounds: int
    final_accuracy: float | None
    up: int
    down: int
    prices: tuple[Price | None, ...]
    diverged: bool = False


def study_names() -> list[str]:
    """Return the names of all studies."""
    folder = files("fedmpdd_paper") / _FOLDER
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_study(name: str) -> Study:
    """Read a study's config, and check every variant of it."""
    if name not in study_names():
        raise InputError(f"study {name!r} is unknown: expected one of {', '.join(study_names())}")
    values = tomllib.loads((files("fedmpdd_paper") / _FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
    own = values.pop("study")
    default = own.get("lrs", [values.pop("lr", 0.1)])
    variants = tuple(
        Variant(each["name"], tuple(each.get("set", ())), tuple(each.get("lrs", default))) for each in own["variants"]
    )
    study = Study(name, own["title"], values, tuple(own["targets"]), variants)
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
    place: Place,
    *,
    to_beat: int | None = None,
    on_round: OnRound | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> VariantRun:
    """Run what is missing of one training, until all targets are reached, and read it.

    to_beat: stop after so many rounds; another step size got there by then.
    """
    folder = folder_of(study, variant, seed, lr, place.out)
    config = study.config(variant, seed, lr)
    if (folder / DONE).is_file():
        check_config(folder, config)
        return read_variant(study, variant, seed, lr, place.out)
    run = open_run(folder, config, place)
    last = min(run.config.rounds, to_beat or run.config.rounds)
    why: str | None = None

    def ends(metrics: RoundMetrics) -> bool:
        nonlocal why
        lost = metrics.clients and (metrics.loss is None or not math.isfinite(metrics.loss))
        if lost or metrics.round + 1 >= last:
            why = "diverged" if lost else ""
        elif metrics.accuracy is not None and metrics.accuracy >= max(study.targets, default=math.inf):
            why = ""
        return why is not None

    def show(metrics: RoundMetrics, _: Run) -> None:
        if on_round is not None:
            on_round(f"{study.name}, {variant.name}, lr {lr:g}, seed {seed}", metrics.round + 1, last, metrics.accuracy)

    if run.last is None or not ends(run.last):  # else it was killed when it was over
        try:
            run.train(show, until=ends, stopped=stopped)
        except (GradientError, CodecError) as error:
            why = str(error)
        if why is None:
            raise StoppedError(f"{study.name}, {variant.name}")
    write_text(folder / DONE, why or "")
    return read_variant(study, variant, seed, lr, place.out)


def choose_variant_lr(
    study: Study,
    variant: Variant,
    place: Place,
    *,
    on_round: OnRound | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> VariantRun:
    """Run the first seed with every step size, and return the best: fewest rounds to the hardest target reached."""
    best: VariantRun | None = None
    for lr in variant.lrs:
        hardest = best.prices[-1] if best is not None and best.prices else None
        to_beat = None if hardest is None else hardest.rounds
        found = run_variant(study, variant, SEEDS[0], lr, place, to_beat=to_beat, on_round=on_round, stopped=stopped)
        best = found if best is None or _rank(found) < _rank(best) else best
    assert best is not None
    return best


def _rank(run: VariantRun) -> tuple[float, ...]:
    return (
        *(math.inf if price is None else price.rounds for price in reversed(run.prices)),
        1.0 if run.diverged else -(run.final_accuracy or 0),
    )


def folder_of(study: Study, variant: Variant, seed: int, lr: float, out: Path) -> Path:
    """The run folder of one training."""
    words = re.sub(r"[^a-z0-9]+", "-", variant.name.lower()).strip("-")
    return out / study.name / words / f"lr-{lr:g}-seed-{seed}"


def read_variant(study: Study, variant: Variant, seed: int, lr: float, out: Path) -> VariantRun:
    """Read a training's metrics."""
    up = down = rounds = 0
    final: float | None = None
    prices: list[Price | None] = [None] * len(study.targets)
    for row in read_metrics(folder_of(study, variant, seed, lr, out)):
        rounds, up, down = row["round"] + 1, up + row["uplink_bytes"], down + row["downlink_bytes"]
        if row["accuracy"] is None:
            continue
        final = row["accuracy"]
        for i, target in enumerate(study.targets):
            if prices[i] is None and final >= target:
                prices[i] = Price(rounds, up, down)
    folder = folder_of(study, variant, seed, lr, out)
    check_rounds(folder, rounds)
    why = (folder / DONE).read_text(encoding="utf-8") if (folder / DONE).is_file() else ""
    return VariantRun(seed, lr, rounds, final, up, down, tuple(prices), why != "")


def variant_lr_that_won(study: Study, variant: Variant, out: Path) -> float | None:
    """Return the step size that `choose_variant_lr` chose, None if it has not tried all of them yet."""
    if not all((folder_of(study, variant, SEEDS[0], lr, out) / DONE).is_file() for lr in variant.lrs):
        return None
    return min((read_variant(study, variant, SEEDS[0], lr, out) for lr in variant.lrs), key=_rank).lr


def reproduce_study(
    study: Study, place: Place, *, seeds: int = len(SEEDS), jobs: int = 1, on_round: OnRound | None = None
) -> dict[str, Any]:
    """Run what is missing of a study, write its results, and return them."""
    with executor(jobs, on_round) as (pool, options):

        def first(i: int) -> Future[VariantRun]:
            return pool.submit(choose_variant_lr, study, study.variants[i], place, **options)

        def later(i: int, seed: int, chosen: VariantRun) -> Future[VariantRun]:
            return pool.submit(run_variant, study, study.variants[i], seed, chosen.lr, place, **options)

        runs = first_seed_then_others(len(study.variants), SEEDS[:seeds], first, later)
    results = {
        "study": study.name,
        "title": study.title,
        "targets": list(study.targets),
        "rows": [_row(study, variant, own) for variant, own in zip(study.variants, runs, strict=True)],
    }
    write_json(place.out / study.name / "results.json", results)
    write_text(place.out / study.name / "table.md", study_text(results))
    return results


def _row(study: Study, variant: Variant, runs: Sequence[VariantRun]) -> dict[str, Any]:
    def over_seeds(i: int, value: Callable[[Price], float]) -> dict[str, Any]:
        prices = [run.prices[i] for run in runs]
        return summarise([None if price is None else value(price) for price in prices]).__dict__

    return {
        "variant": variant.name,
        "changes": list(variant.changes),
        "lr": runs[0].lr,
        "diverged": sum(run.diverged for run in runs),
        **{
            name: summarise([getattr(run, name) for run in runs]).__dict__
            for name in ("final_accuracy", "rounds", "up", "down")
        },
        "to": [
            {
                "target": target,
                "rounds": over_seeds(i, lambda price: price.rounds),
                "up": over_seeds(i, lambda price: price.up),
                "down": over_seeds(i, lambda price: price.down),
                "both": over_seeds(i, lambda price: price.up + price.down),
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
            found = row["to"][i]
            there = f"{found['rounds']['reached']} of {found['rounds']['runs']}"
            if row.get("diverged"):
                there += f", {row['diverged']} diverged"
            if found["both"]["mean"] is None:
                accuracy = row["final_accuracy"]["mean"]
                ended = "–" if accuracy is None else f"ended at {accuracy:.1%}"
                lines.append(f"| {row['variant']} | {row['lr']:g} | {there} | {ended} | – | – | – | – |")
                continue
            sizes = " | ".join(short_bytes(found[part]["mean"]) for part in ("up", "down", "both"))
            whole = found["rounds"]["reached"] == found["rounds"]["runs"] and base is not None
            ratio = three_digits(base / found["both"]["mean"]) if whole else "–"
            rounds = f"{found['rounds']['mean']:,.0f}"
            if found["rounds"]["sd"] is not None:
                rounds += f" ± {found['rounds']['sd']:,.0f}"
            lines.append(f"| {row['variant']} | {row['lr']:g} | {there} | {rounds} | {sizes} | {ratio} |")
        lines.append("")
    if not results["targets"]:
        lines += ["| variant | lr | seeds | rounds | accuracy | up | down |", "| --- " * 7 + "|"]
        for row in results["rows"]:
            found = row["final_accuracy"]
            accuracy = "–" if found["mean"] is None else f"{found['mean']:.1%}"
            if found["sd"] is not None:
                accuracy += f" ± {100 * found['sd']:.1f}"
            sizes = " | ".join(short_bytes(row[part]["mean"]) for part in ("up", "down"))
            lines.append(
                f"| {row['variant']} | {row['lr']:g} | {found['runs']} | {row['rounds']['mean']:,.0f} | {accuracy} "
                f"| {sizes} |"
            )
        lines.append("")
    return "\n".join(lines)


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    return {key: dict(value) if isinstance(value, dict) else value for key, value in values.items()}
