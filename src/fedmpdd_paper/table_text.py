"""A table for people: ours, and the paper's number in parentheses."""

import re
from collections.abc import Callable
from typing import Any

FULL, FLOAT32, OURS = r"fedsgd", r"mpdd:m=\d+", r"mpdd:.*family=.*|peaks:.*"  # rows that are compared, by their codecs
GOAL_FLOAT32, GOAL_OURS = 20, 100  # times fewer bytes: FedMPDD than FedSGD, our best than FedMPDD


def short_name(row: dict[str, Any]) -> str:
    """A row's name that fits a legend: "hadamard, 1 bit, m = 400" for a codec of ours."""
    name: str = row["method"]
    kind, *options = name.split(":")
    values = dict(option.split("=") for option in options) if all("=" in option for option in options) else {}
    if kind == "peaks" and values:
        grows = f" to {values['grows_to']}" if "grows_to" in values else ""
        return f"peaks, m = {values['m']}{grows}"
    if kind != "mpdd" or "family" not in values:
        return name
    bits = values.get("bits", "32")
    return f"{values['family']}, {bits} bit{'' if bits == '1' else 's'}, m = {values['m']}"


def markdown(results: dict[str, Any]) -> str:
    """The table for people: ours, and the paper's number in parentheses."""
    if any((row["paper"] or {}).get("final_accuracy") is not None for row in results["rows"]):
        return _final_accuracies(results)
    target, second = f"{results['target']:.0%}", f"{results['harder']:.0%}"
    lines = [
        f"# {results['table']}",
        "",
        "Mean ± standard deviation over seeds; in parentheses the paper's number. Bytes as the paper counts: scale and "
        "scalars of all clients. Accuracy at the budget: when it is spent, or when FedMPDD has spent it. n/k: so many "
        f"of k seeds got there. Lost: so many diverged, or were below {target} again when they ended.",
        "",
        f"| method | lr | accuracy at {short_bytes(results['budget'])} | bytes to {target} | rounds to {target} "
        f"| bytes to {second} | against FedSGD, FedMPDD at {target} | at {second} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    rows = results["rows"]
    attacks = [row["audit"]["attack"] for row in rows if "audit" in row]
    if attacks:
        lines[-2] += f" SSIM of {attacks[0]} | of the adaptive attack | verdict |"
        lines[-1] += " --- | --- | --- |"
    for row in rows:
        ours, paper = row["ours"], row["paper"] or {}
        accuracy = share(ours["accuracy_at_budget"])
        if row.get("lost"):
            accuracy += f", {row['lost']} lost"
        if paper.get("acc_at_budget") is not None:
            accuracy += f" ({paper['acc_at_budget']:.1f} %)"
        used = _mean_bytes(ours["bytes_to_target"])
        if paper.get("used_bytes") is not None:
            used += f" ({short_bytes(paper['used_bytes'])})"
        rounds = _number(ours["rounds_to_target"])
        if paper.get("rounds_to_target") is not None:
            rounds += f" ({paper['rounds_to_target']})"
        ratios = [_ratios(row, rows, name) for name in ("bytes_to_target", "bytes_to_harder")]
        lines.append(
            f"| {row['method']} | {row['lr']:g} | {accuracy} | {used} | {rounds} "
            f"| {_mean_bytes(ours['bytes_to_harder'])} | {ratios[0]} | {ratios[1]} |"
        )
        if attacks:
            attack = row.get("audit")
            printed = "" if paper.get("ssim") is None else f" ({paper['ssim']})"
            lines[-1] += (
                f" –{printed} | – | not attacked |"
                if attack is None
                else f" {attack['ssim']:.2f}{printed} | {attack['adaptive_ssim']:.2f} | {attack['verdict']} |"
            )
    lines += ["", *(f"* {sentence}" for sentence in goal_sentences(results))]
    if any("linkage" not in row["audit"] for row in rows if "audit" in row):
        lines.append("* Verdicts are on reconstruction alone: whether updates can be linked to images was not kept.")
    return "\n".join(lines).rstrip() + "\n"


def _final_accuracies(results: dict[str, Any]) -> str:
    """A table of the paper that gives one number a row, the accuracy at the end."""
    target = f"{results['target']:.0%}"
    lines = [
        f"# {results['table']}",
        "",
        "Mean ± standard deviation over seeds; in parentheses the paper's number. Bytes as the paper counts.",
        "",
        f"| method | lr | final accuracy | bytes to {target} | rounds to {target} |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        ours, printed = row["ours"], (row["paper"] or {}).get("final_accuracy")
        accuracy = share(ours["final_accuracy"]) + ("" if printed is None else f" ({printed} %)")
        used, rounds = _mean_bytes(ours["bytes_to_target"]), _number(ours["rounds_to_target"])
        lines.append(f"| {row['method']} | {row['lr']:g} | {accuracy} | {used} | {rounds} |")
    return "\n".join(lines) + "\n"


def goal_sentences(results: dict[str, Any]) -> list[str]:
    """What this project set itself for every table, as measured: FedMPDD against FedSGD, our best against FedMPDD."""
    sentences = []
    is_missed = False
    rows = results["rows"]
    for name, goal, counted, compared, base, best in (
        (f"FedMPDD float32 against FedSGD, bytes (goal {GOAL_FLOAT32})", GOAL_FLOAT32, "bytes", rows, FULL, FLOAT32),
        (f"Our best codec against FedMPDD float32, bytes (goal {GOAL_OURS})", GOAL_OURS, "bytes", rows, FLOAT32, OURS),
        ("Our best of which no seed was lost, bytes", None, "bytes", _never_lost(rows), FLOAT32, OURS),
        ("Our best codec in whole frames, session and checksum included", None, "frames", rows, FLOAT32, OURS),
    ):
        parts = []
        for key in ("target", "harder"):
            share = results[key]
            times, codec = _times_fewer(compared, f"{counted}_to_{key}", base, best)
            text = (
                "not measured (no such row, or not every seed got there)"
                if times is None
                else f"{three_digits(times)} times fewer ({codec})"
            )
            if goal is not None and times is not None and times < goal:
                text, is_missed = f"{text}, **missed**", True
            parts.append(f"at {share:.0%} {text}")
        sentences.append(f"{name}: {', '.join(parts)}.")
    if is_missed and results.get("missed"):
        sentences.append(f"Why: {results['missed']}")
    return sentences


def goal_numbers(results: dict[str, Any], key: str) -> list[float | None]:
    """How many times fewer bytes to the target or the second one, which `key` says.

    FedMPDD than FedSGD, our best than FedMPDD, our best of which no seed was lost, our best in whole frames, our best
    than FedSGD.
    """
    rows = results["rows"]
    return [
        _times_fewer(compared, f"{counted}_to_{key}", base, best)[0]
        for counted, compared, base, best in (
            ("bytes", rows, FULL, FLOAT32),
            ("bytes", rows, FLOAT32, OURS),
            ("bytes", _never_lost(rows), FLOAT32, OURS),
            ("frames", rows, FLOAT32, OURS),
            ("bytes", rows, FULL, OURS),
        )
    ]


def _never_lost(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows without those of ours that some seed did not stay with."""
    return [row for row in rows if not (row.get("lost") and re.fullmatch(OURS, row["codec"]))]


def _times_fewer(rows: list[dict[str, Any]], key: str, base: str, best: str) -> tuple[float | None, str | None]:
    before, after = _base(rows, base)(key), _base(rows, best)(key)
    if before is None or after is None:
        return None, None
    return before["ours"][key]["mean"] / after["ours"][key]["mean"], after["codec"]


def three_digits(value: float) -> str:
    """A number with three digits that count: 16,700, 31.6, 0.449."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 999.5 else f"{value:.3g}"


def _base(rows: list[dict[str, Any]], pattern: str) -> Callable[[str], dict[str, Any] | None]:
    """Return what finds, of the rows with such a codec, the one with the fewest bytes, all of whose seeds got there."""

    def find(key: str) -> dict[str, Any] | None:
        there = [row for row in rows if re.fullmatch(pattern, row["codec"]) and _all_there(row["ours"][key])]
        return min(there, key=lambda row: float(row["ours"][key]["mean"]), default=None)

    return find


def _all_there(value: dict[str, Any]) -> bool:
    return value["reached"] == value["runs"] and value["mean"] is not None


def _ratios(row: dict[str, Any], rows: list[dict[str, Any]], key: str) -> str:
    """How many times fewer bytes than FedSGD, and than the best float32 FedMPDD; none where a seed is missing."""
    ours = row["ours"][key]
    bases = [_base(rows, pattern)(key) for pattern in (FULL, FLOAT32)]
    return ", ".join(
        "–" if base is None or not _all_there(ours) else f"{three_digits(base['ours'][key]['mean'] / ours['mean'])}×"
        for base in bases
    )


def share(value: dict[str, Any]) -> str:
    """A mean of accuracies over seeds: 88.9% ± 0.3."""
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
    return short_bytes(value["mean"]) + spread + share


def short_bytes(count: float) -> str:
    """A number of bytes with three digits that count."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
