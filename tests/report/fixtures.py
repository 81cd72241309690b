"""Run and audit folders with numbers that were chosen, not trained."""

import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmpdd.simulation import parse_config

FEDSGD = {"name": "fedsgd"}
ONE_BIT = {"name": "mpdd", "m": 4, "bits": 1, "family": "hadamard", "keys": "partitioned"}
ENVIRONMENT = {"from_round": 0, "fedmpdd": "0.1.0", "platform": "Linux", "threads": 2}

METER = {"bits_per_update": 128, "updates_per_client": 3, "bits_revealed": 384, "bits_of_data": 4e4, "share": 0.0096}
METER["paper"] = 0.01


def make_run(
    folder: Path,
    accuracies: Mapping[int, float],
    *,
    codec: Mapping[str, Any] = FEDSGD,
    seed: int = 1,
    rounds: int = 6,
    done: int | None = None,
    ended: bool | None = None,
    uplink: int = 100,
    payload: int = 80,
    losses: list[float | None] | None = None,
    metric: str = "accuracy",
    **settings: Any,
) -> Path:
    """A run with these accuracies, or another metric, after so many rounds, and the same bytes in every round."""
    config = parse_config({"rounds": rounds, "seed": seed, "codec": dict(codec), "model": "logistic", **settings})
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(config.model_dump_json(indent=2))
    (folder / "environment.json").write_text(json.dumps([ENVIRONMENT]))
    count = rounds if done is None else done
    lines = [
        {
            "round": i,
            "loss": losses[i] if losses else 2.0 - 0.1 * i,
            "clients": 2,
            "uplink_bytes": uplink,
            "payload_bytes": payload,
            "downlink_bytes": 1000,
            **_tested(accuracies.get(i + 1), metric),
        }
        for i in range(count)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if count == rounds if ended is None else ended:
        summary = {"rounds": count, "uplink_bytes": count * uplink, "model_sha256": f"{seed:064x}"}
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def _tested(value: float | None, metric: str) -> dict[str, Any]:
    if metric == "accuracy":
        return {"accuracy": value}
    if metric == "loss":
        return {"accuracy": None, "test_loss": value, "metrics": None if value is None else {}}
    return {"accuracy": None, "test_loss": value, "metrics": None if value is None else {metric: value}}


def make_runs(below: Path) -> Path:
    """FedSGD and one bit with two seeds each, evaluated after rounds 2, 4 and 6."""
    for name, codec, uplink, payload, seeds in (
        ("a", FEDSGD, 100, 80, {1: (0.5, 0.6, 0.7), 2: (0.5, 0.7, 0.8)}),
        ("b", ONE_BIT, 10, 8, {1: (0.3, 0.6, 0.75), 2: (0.2, 0.7, 0.65)}),
    ):
        for seed, values in seeds.items():
            accuracies = dict(zip((2, 4, 6), values, strict=True))
            make_run(below / f"{name}-{seed}", accuracies, codec=codec, seed=seed, uplink=uplink, payload=payload)
    return below


def audit_row(codec: str, attack: str, verdict: str, ssim: float, /, **changes: Any) -> dict[str, Any]:
    row = {
        "model": "logistic", "codec": codec, "attack": attack, "ssim": ssim, "control_ssim": 0.9,
        "class_mean_ssim": 0.3, "mse": 0.01, "psnr": 20.0, "labels_found": 1.0, "linkage": None, "bits_revealed": 1000,
        "verdict": verdict, "sentence": f"{codec}: {attack} …", "ssim_each": [ssim, ssim],
    }  # fmt: skip
    return row | changes


def make_audit(folder: Path, rows: list[dict[str, Any]] | None = None, **run_settings: Any) -> Path:
    """An audit of two images by two attacks on two codecs, with its picture."""
    if rows is None:
        rows = [
            audit_row("fedsgd", "dlg", "reconstructed", 0.9),
            audit_row("mpdd:m=4", "dlg", "nothing beyond the class mean", 0.2),
            audit_row("mpdd:m=4", "adaptive", "partly", 0.6),
        ]
    config = {
        "config": {"dataset": "mnist-5k", "model": "logistic", "batch": 1, **run_settings},
        "audit": {"images": 2, "batch": None, "run": None},
    }
    (folder / "cells").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    verdicts = {(row["model"], row["codec"]): row["verdict"] for row in rows}  # of the last attack
    codecs = [{"model": m, "codec": c, "verdict": v, "meter": METER} for (m, c), v in verdicts.items()]
    (folder / "results.json").write_text(json.dumps({"rows": rows, "codecs": codecs, "config": config}))
    (folder / "logistic.png").write_bytes(grey_png(2 * 6, (len(rows) + 1) * 5))
    return folder


def grey_png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    lines = b"".join(b"\0" + bytes((x * 20 + y * 7) % 256 for x in range(width)) for y in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    data = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + data
