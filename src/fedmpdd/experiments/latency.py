"""The paper's table of encode times: one gradient of LeNet, float32 scalars, on this machine's CPU or GPU."""

import json
from importlib.resources import files
from typing import Any

from fedmpdd.bench import codec as cpu
from fedmpdd.codecs import MPDD
from fedmpdd.directions import why_no_gpu
from fedmpdd.documents import read_json
from fedmpdd.errors import ConfigError, RunError
from fedmpdd.experiments.trainings import Place
from fedmpdd.federation.runs import write_json, write_text

NAME, RESULTS = "encode-latency", "results.json"
D = 13_426


def reproduce_latency(place: Place, *, seconds: float = 0.5) -> dict[str, Any]:
    """Time encoding at the paper's numbers of directions, write the results, and return them."""
    problem = why_no_gpu()
    if place.device == "cuda" and problem is not None:
        raise ConfigError(f'device = "cuda": {problem}; use device = "cpu" or "auto"')
    printed = json.loads((files("fedmpdd") / "experiments" / "paper.json").read_text(encoding="utf-8"))[NAME]
    cases = tuple(cpu.Case("encode", MPDD(row["m"]), D) for row in printed)
    if place.device == "cpu" or problem is not None:
        measured = list(cpu.run(cases, seconds=seconds))
    else:
        from fedmpdd.bench import cuda

        measured = [row for row in cuda.run(cases, seconds=seconds) if row.impl == "fedmpdd"]
    results = {
        "table": NAME,
        "d": D,
        "rows": [
            {"m": row["m"], "paper_ms": row["ms"], "paper_device": "NVIDIA A100", "ours": own.as_dict()}
            for row, own in zip(printed, measured, strict=True)
        ],
    }
    folder = place.out / NAME
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULTS, results)
    write_text(folder / "table.md", latency_text(results))
    return results


def done_latency(place: Place) -> dict[str, Any] | None:
    """Return what was timed earlier, if anything was."""
    path = place.out / NAME / RESULTS
    if not path.is_file():
        return None
    document: dict[str, Any] = read_json(path, "delete it, and without --done it is measured again")
    try:
        latency_text(document)
    except (ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} is damaged: {error!r}; delete it, and without --done it is measured again") from None
    return document


def latency_text(results: dict[str, Any]) -> str:
    """The table for people."""
    lines = [
        f"# {results['table']}",
        "",
        f"One gradient of d = {results['d']:,} onto m directions, milliseconds.",
        "",
        "| m | the paper, on an NVIDIA A100 | here | on |",
        "| --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        ours = row["ours"]
        where = ours["device"] if ours["isa"] is None else f"{ours['device']}, {ours['threads']} thread, {ours['isa']}"
        lines.append(f"| {row['m']} | {row['paper_ms']} | {ours['median_ms']:.3g} | {where} |")
    return "\n".join(lines) + "\n"
