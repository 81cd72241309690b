"""A table for people: ours, and the paper's number in parentheses."""

import re
from typing import Any


def markdown(results: dict[str, Any]) -> str:
    """The table for people: ours, and the paper's number in parentheses."""
    target, harder = f"{results['target']:.0%}", f"{results['harder']:.0%}"
    lines = [
        f"# {results['table']}",
        "",
        "Mean ± standard deviation over seeds; in parentheses the paper's number. Bytes as the paper counts: scale and "
        "scalars of all clients. Accuracy at the budget: when it is spent, or when FedMPDD has spent it. n/k: so many "
        "of k seeds got there.",
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
