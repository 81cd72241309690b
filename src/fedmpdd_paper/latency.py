"""The paper's table of encode times: one gradient of LeNet, float32 scalars, on this machine's CPU or GPU."""

import json
import time
from importlib.resources import files
from statistics import median
from typing import Any

import numpy as np

from fedmpdd.codecs import MPDD
from fedmpdd.directions import backend, using, why_no_gpu
from fedmpdd.documents import read_json, write_json, write_text
from fedmpdd.errors import ConfigError, RunError
from fedmpdd_paper.trainings import Workspace

NAME, RESULTS = "encode-latency", "results.json"
D = 13_426


def reproduce_latency(workspace: Workspace, *, seconds: float = 0.5) -> dict[str, Any]:
    """Time encoding at the paper's numbers of directions, write the results, and return them."""
    problem = why_no_gpu()
    if workspace.device == "cuda" and problem is not None:
        raise ConfigError(f'device = "cuda": {problem}; use device = "cpu" or "auto"')
    printed = json.loads((files("fedmpdd_paper") / "paper.json").read_text(encoding="utf-8"))[NAME]
    on_gpu = workspace.device != "cpu" and problem is None
    measured = [_timed(MPDD(row["m"]), on_gpu=on_gpu, seconds=seconds) for row in printed]
    results = {
        "table": NAME,
        "d": D,
        "rows": [
            {"m": row["m"], "paper_ms": row["ms"], "paper_device": "NVIDIA A100", "ours": ours}
            for row, ours in zip(printed, measured, strict=True)
        ],
    }
    folder = workspace.out / NAME
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / RESULTS, results)
    write_text(folder / "table.md", latency_text(results))
    return results


def _timed(codec: MPDD, *, on_gpu: bool, seconds: float) -> dict[str, Any]:
    """The median time of encoding one gradient by the public call, on one thread or on a GPU, after one to warm up."""
    gradients: Any = np.random.default_rng(0).standard_normal((1, D)).astype(np.float32)
    if on_gpu:
        import torch

        gradients = torch.from_numpy(gradients).cuda()
    times: list[float] = []
    with using(threads=1):
        codec.encode(gradients, [1])  # its updates are on the host, so that the call ends when the GPU is done
        end = time.perf_counter() + seconds
        while len(times) < 3 or (time.perf_counter() < end and len(times) < 2_000):
            start = time.perf_counter()
            codec.encode(gradients, [1])
            times.append(time.perf_counter() - start)
        return {
            "m": codec.m,
            "device": "cuda" if on_gpu else "cpu",
            "threads": 1,
            "isa": None if on_gpu else backend().isa,
            "median_ms": median(times) * 1e3,
        }


def done_latency(workspace: Workspace) -> dict[str, Any] | None:
    """Return what was timed earlier, if anything was."""
    path = workspace.out / NAME / RESULTS
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
