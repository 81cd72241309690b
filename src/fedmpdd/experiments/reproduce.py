"""`fedmpdd reproduce`: run what a table needs and is not there yet, and put the paper's numbers beside ours.

    OUT/TABLE/CODEC/lr-LR-seed-SEED/    run folders; resumed if they are not done
    OUT/TABLE/audit/                    the audit of its codecs, where one was asked for
    OUT/TABLE/results.json, table.md    what was read off them

The step size of every method is chosen among the table's, as the paper does: on the first seed, the one with the fewest
rounds to the target, or, where a table says so to save time, the highest accuracy after a few of them. A run ends once
it has reached the harder target and spent the budget of bytes, or diverged, or used up its rounds.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmpdd.errors import CodecError, GradientError
from fedmpdd.experiments.reading import Reading, better, read_run, summarise
from fedmpdd.experiments.tables import SEEDS, Method, Table
from fedmpdd.federation.engine import RoundMetrics
from fedmpdd.federation.runs import METRICS, Run, write_json, write_text
from fedmpdd.privacy.audit import run_audit
from fedmpdd.privacy.config import Audit, AuditConfig

OnRound = Callable[[str, int, int, float | None], None]  # which run, its round, of how many, accuracy
DONE = "done"  # a file that says why a run ended early, if it diverged


def reproduce(
    table: Table,
    out: Path,
    *,
    seeds: int = len(SEEDS),
    methods: Sequence[str] | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
    audited: bool = False,
    on_round: OnRound | None = None,
    on_attack: Callable[[str, float], None] | None = None,
) -> dict[str, Any]:
    """Run what is missing of a table, write its results, and return them.

    audited: attack its codecs too, with the paper's attack and the adaptive one.
    """
    chosen = [m for m in table.methods if methods is None or m.codec in methods or m.name in methods]
    rows = []
    for method in chosen:
        readings: list[Reading] = []
        for number, seed in enumerate(SEEDS[:seeds]):

            def read(lr: float, rounds: int | None = None, seed: int = seed, method: Method = method) -> Reading:
                return _reading(table, method, seed, lr, rounds, out, device, data_dir, on_round)

            if number > 0:
                readings.append(read(readings[0].lr))
            elif table.search is None:
                readings.append(_best([read(lr) for lr in table.lrs]))
            else:
                readings.append(read(_best([read(lr, table.search) for lr in table.lrs]).lr))
        rows.append(_row(method, readings))
    if audited:
        _add_audit(table, rows, out / table.name / "audit", data_dir, on_attack)
    results = {
        "table": table.name,
        "target": table.target,
        "harder": table.harder,
        "budget": table.budget,
        "rows": rows,
    }
    folder = out / table.name
    write_json(folder / "results.json", results)
    write_text(folder / "table.md", markdown(results))
    return results


def _add_audit(
    table: Table,
    rows: list[dict[str, Any]],
    folder: Path,
    data_dir: Path | None,
    on_attack: Callable[[str, float], None] | None,
) -> None:
    """Attack the codecs of the rows, one image a batch, the model at its start; write what came out into the rows."""
    own = AuditConfig(attacks=(table.attack, "adaptive"), codecs=tuple(row["codec"] for row in rows), images=4, batch=1)
    found = run_audit(Audit(config=table.config, audit=own), folder, data_dir, on_attack)
    for row in rows:
        cells = {cell["attack"]: cell for cell in found["rows"] if cell["codec"] == row["codec"]}
        row["audit"] = {
            "attack": table.attack,
            "ssim": cells[table.attack]["ssim"],
            "adaptive_ssim": cells["adaptive"]["ssim"],
            "verdict": next(codec["verdict"] for codec in found["codecs"] if codec["codec"] == row["codec"]),
        }


def _best(readings: Sequence[Reading]) -> Reading:
    best = readings[0]
    for reading in readings[1:]:
        best = reading if better(reading, best) else best
    return best


def _reading(
    table: Table,
    method: Method,
    seed: int,
    lr: float,
    rounds: int | None,
    out: Path,
    device: str,
    data_dir: Path | None,
    on_round: OnRound | None,
) -> Reading:
    kind = "" if rounds is None else "search-"
    folder = out / table.name / re.sub(r"[^a-z0-9]+", "-", method.codec.lower()) / f"{kind}lr-{lr:g}-seed-{seed}"

    def read() -> Reading:
        reading = read_run(folder, seed, lr, target=table.target, harder=table.harder, budget=table.budget)
        stopped = (folder / DONE).is_file() and (folder / DONE).read_text(encoding="utf-8") != ""
        return replace(reading, diverged=reading.diverged or stopped)

    if (folder / DONE).is_file():
        return read()
    if (folder / METRICS).is_file():
        run = Run.resume(folder, data_dir)
    else:
        folder.parent.mkdir(parents=True, exist_ok=True)
        config = table.run_config(method, seed, lr, device)
        run = Run.create(folder, config.model_copy(update={"rounds": rounds or config.rounds}), data_dir)

    reached = read().bytes_to_harder is not None if (folder / METRICS).is_file() else False

    def finished(metrics: RoundMetrics) -> bool:
        nonlocal reached
        if metrics.clients and (metrics.loss is None or not math.isfinite(metrics.loss)):
            return True
        reached = reached or (metrics.accuracy is not None and metrics.accuracy >= table.harder)
        return reached and run.payload_bytes >= table.budget

    def show(metrics: RoundMetrics, _: Run) -> None:
        if on_round is not None:
            name = f"{table.name}, {method.name}, {'search, ' if rounds else ''}lr {lr:g}, seed {seed}"
            on_round(name, metrics.round + 1, run.config.rounds, metrics.accuracy)

    why = ""
    try:
        run.train(show, until=finished)
    except (GradientError, CodecError) as error:  # the step size was too large, and there is nothing left to encode
        why = str(error)
    write_text(folder / DONE, why)
    return read()


def _row(method: Method, readings: list[Reading]) -> dict[str, Any]:
    def over_seeds(name: str) -> dict[str, Any]:
        return summarise([getattr(reading, name) for reading in readings]).__dict__

    names = ("accuracy_at_budget", "bytes_to_target", "rounds_to_target", "bytes_to_harder", "rounds_to_harder")
    return {
        "method": method.name,
        "codec": method.codec,
        "lr": readings[0].lr,
        "paper": method.paper,
        "ours": {name: over_seeds(name) for name in (*names, "final_accuracy", "frames_to_target")},
        "runs": [reading.as_dict() for reading in readings],
    }


def markdown(results: dict[str, Any]) -> str:
    """The table for people: ours, and the paper's number in parentheses."""
    target, harder = f"{results['target']:.0%}", f"{results['harder']:.0%}"
    lines = [
        f"# {results['table']}",
        "",
        "Mean ± standard deviation over seeds; in parentheses the paper's number. Bytes as the paper counts: scale and "
        "scalars of all clients. n/k: so many of k seeds got there.",
        "",
        f"| method | lr | accuracy at {_bytes(results['budget'])} | bytes to {target} | rounds to {target} "
        f"| bytes to {harder} | against FedSGD, FedMPDD at {target} | at {harder} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = results["rows"]
    audited = all("audit" in row for row in rows)
    if audited:
        lines[-2] += f" SSIM of {rows[0]['audit']['attack']} | of the adaptive attack | verdict |"
        lines[-1] += " --- | --- | --- |"
    full = next((row for row in rows if row["codec"] == "fedsgd"), None)
    float32 = [row for row in rows if re.fullmatch(r"mpdd:m=\d+", row["codec"])]
    for row in rows:
        ours, paper = row["ours"], row["paper"] or {}
        accuracy = _share(ours["accuracy_at_budget"])
        if paper.get("acc_at_budget") is not None:
            accuracy += f" ({paper['acc_at_budget']:.1f} %)"
        used = _mean_bytes(ours["bytes_to_target"])
        if paper.get("used_bytes") is not None:
            used += f" ({_bytes(paper['used_bytes'])})"
        rounds = _number(ours["rounds_to_target"])
        if paper.get("rounds_to_target") is not None:
            rounds += f" ({paper['rounds_to_target']})"
        ratios = [_ratios(row, full, float32, name) for name in ("bytes_to_target", "bytes_to_harder")]
        lines.append(
            f"| {row['method']} | {row['lr']:g} | {accuracy} | {used} | {rounds} "
            f"| {_mean_bytes(ours['bytes_to_harder'])} | {ratios[0]} | {ratios[1]} |"
        )
        if audited:
            attack = row["audit"]
            printed = "" if paper.get("ssim") is None else f" ({paper['ssim']})"
            lines[-1] += f" {attack['ssim']:.2f}{printed} | {attack['adaptive_ssim']:.2f} | {attack['verdict']} |"
    return "\n".join(lines) + "\n"


def _ratios(row: dict[str, Any], full: dict[str, Any] | None, float32: list[dict[str, Any]], name: str) -> str:
    """How many times fewer bytes than FedSGD, and than the best float32 FedMPDD."""
    own = row["ours"][name]["mean"]
    bases = [full["ours"][name]["mean"] if full else None]
    bases.append(min((r["ours"][name]["mean"] for r in float32 if r["ours"][name]["mean"]), default=None))
    return ", ".join("–" if own is None or base is None else f"{base / own:.3g}×" for base in bases)


def _share(value: dict[str, Any]) -> str:
    if value["mean"] is None:
        return "–"
    return f"{value['mean']:.1%}" + ("" if value["sd"] is None else f" ± {100 * value['sd']:.1f}")


def _number(value: dict[str, Any]) -> str:
    if value["mean"] is None:
        return "–"
    share = "" if value["reached"] == value["runs"] else f", {value['reached']}/{value['runs']}"
    return f"{value['mean']:.0f}" + ("" if value["sd"] is None else f" ± {value['sd']:.0f}") + share


def _mean_bytes(value: dict[str, Any]) -> str:
    if value["mean"] is None:
        return "–"
    share = "" if value["reached"] == value["runs"] else f", {value['reached']}/{value['runs']}"
    spread = "" if value["sd"] is None else f" ± {value['sd'] / value['mean']:.0%}"
    return _bytes(value["mean"]) + spread + share


def _bytes(count: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
