"""Ten rounds of every combination of codec, keys and feature, and of every shipped config: the hashes that must stay.

A combination that the package refuses has no row. One that it learns to accept later needs none either: rows say what
must not change, and not what must not be possible.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import fedmpdd as fm
from fedmpdd.errors import ConfigError
from fedmpdd.simulation import RoundMetrics, RunConfig, parse_config, shipped_configs
from fedmpdd.simulation.replay import model_sha256
from fedmpdd.tasks.data import DATASETS, Dataset, Examples, data_folder

ROUNDS = 10
BASE: dict[str, Any] = {
    "model": "logistic",
    "clients": 8,
    "clients_per_round": 4,
    "batch": 3,
    "lr": 0.05,
    "rounds": ROUNDS,
    "evaluate_every": ROUNDS,
    "device": "cpu",
    "seed": 5,
}
CODECS = (
    "mpdd:m=24",
    "mpdd:m=24:family=hadamard",
    "mpdd:m=24:bits=16",
    "mpdd:m=24:bits=8:family=hadamard",
    "mpdd:m=25:bits=4",
    "mpdd:m=25:bits=1",
    "mpdd:m=25:bits=1:family=hadamard",
    "fedsgd",
    "qsgd:bits=8",
    "qsgd:bits=4",
    "topk:k=20",
    "randk:k=30",
    "lp-proj:size=20",
    "laplace:noise=0.0001",
    "gaussian:noise=0.0001",
    "signsgd",
    "signsgd:scaled=false",
    "eden:bits=1",
    "eden:bits=2:rows=50",
    "decomfl:m=4",
    "sa-fedlora:rank=1:warmup=3",
    "peaks:m=5:group=16",
    "peaks:m=5:group=16:family=rademacher",
    "peaks:m=2:group=16:grows_to=9:grows_after=2",
)
KEYS = ("sent", "derived", "partitioned", "shared")
# What may come beside a codec and its keys; the first is the training as it is.
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "journal": {"journal": True},
    "replay": {"downlink": "replay"},
    "downlink-32": {"downlink": "replay", "downlink_bits": 32},
    "downlink-8": {"downlink_bits": 8},
    "downlink-1": {"downlink": "replay", "downlink_bits": 1},
    "secure": {"secure": {"clip": 3.0}},
    "secure-noise": {"secure": {"clip": 3.0, "noise_multiplier": 0.05}, "journal": True},
    "secure-narrow": {"secure": {"clip": 3.0, "noise_multiplier": 0.002, "ring_bits": 16}, "downlink_bits": 8},
    "forward": {"client": "forward"},
    "feedback": {"codec": {"error_feedback": True}},
    "clip": {"codec": {"clip": 2.0}},
    "noise": {"codec": {"clip": 2.0, "noise_multiplier": 0.1}},
    "grid": {"codec": {"scale_grid": 2.0}},
    "forward-noise": {"client": "forward", "codec": {"clip": 2.0, "noise_multiplier": 0.1}},
}
# What does not depend on the codec is looked at with three of them.
SETTINGS: dict[str, dict[str, Any]] = {
    "momentum": {"server": {"optimiser": "momentum"}},
    "adam": {"server": {"optimiser": "adam"}, "lr": 0.01},
    "examples": {"weighting": "examples", "partition": {"kind": "dirichlet", "alpha": 50.0}},
    "classes": {"partition": {"kind": "classes"}},
    "dropout": {"dropout": 0.4},
    "secure-dropout": {"dropout": 0.3, "secure": {"clip": 3.0}},
    "local-steps": {"local_steps": 3, "local_lr": 0.02, "lr": 1.0},
    "loop": {"gradients": "loop"},
    "layers": {"gradients": "layers"},
    "unit": {"pixels": "unit", "init": "uniform"},
    "lenet": {"model": "lenet"},
    "cnn": {"model": "cnn-lin2022"},
    "lenet-forward": {"model": "lenet", "client": "forward", "gradients": "loop"},
}
SETTINGS_CODECS = ("mpdd:m=24:keys=shared", "fedsgd", "peaks:m=5:group=16")


def images(side: int = 28) -> Dataset:
    """Return noisy pictures of four classes: small, and made of NumPy's integers alone."""
    rng = np.random.default_rng(2024)
    prototypes = rng.integers(0, 256, (4, 1, side, side))

    def examples(count: int) -> Examples:
        labels = np.arange(count) % 4
        noisy = (2 * prototypes[labels] + 3 * rng.integers(0, 256, (count, 1, side, side))) // 5
        return Examples(noisy.astype(np.uint8), labels.astype(np.int64))

    return Dataset("made-up", examples(160), examples(40), 4, (0.5,), (0.25,))


def configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every combination by name, those included that are refused."""
    for codec in CODECS:
        for keys in KEYS:
            for feature, changes in FEATURES.items():
                yield f"{codec}:keys={keys} {feature}", _config(f"{codec}:keys={keys}", changes)
    for codec in SETTINGS_CODECS:
        for setting, changes in SETTINGS.items():
            yield f"{codec} {setting}", _config(codec, changes)


def _config(codec: str, changes: dict[str, Any]) -> dict[str, Any]:
    name, *words = codec.split(":")
    pairs = (word.split("=") for word in words)
    parameters = {key: json.loads(value) if value[0].isdigit() or value == "false" else value for key, value in pairs}
    return {**BASE, **changes, "codec": {"name": name, **parameters, **changes.get("codec", {})}}


class Outcome(fm.callbacks.Callback):
    """Ten rounds, and what they lead to: the model's hash, and that of all bundles where there are some."""

    def __init__(self) -> None:
        self._bundles = hashlib.sha256()

    def after_round(self, training: fm.callbacks.Training, metrics: RoundMetrics) -> None:
        federation = training.federation
        self._bundles.update(federation.bundle)
        model = model_sha256(federation.flat)[:16]
        self.text = f"{model} {self._bundles.hexdigest()[:16]}" if federation.config.journaled else model
        training.is_over = training.history.last.rounds >= ROUNDS


def trained(config: RunConfig, data: Dataset | None = None) -> str:
    """Return what ten rounds of a config lead to, called as anybody calls it."""
    outcome = Outcome()
    fm.train(config, task=data, callbacks=[outcome], progress=False)
    return outcome.text


def matrix() -> dict[str, str]:
    """Return the hashes of all combinations that are accepted."""
    small, large = images(8), images()
    rows = {}
    for name, values in configs():
        try:
            config = parse_config(values)
            rows[name] = trained(config, small if config.model == "logistic" else large)
        except ConfigError:
            continue
    return rows


def shipped() -> dict[str, str]:
    """Return the hashes of the shipped configs: on their own data where it is here, and on the bundled digits."""
    rows = {}
    for name in shipped_configs():
        config = fm.load_config(name, ["device=cpu"])
        bundled = fm.load_config(name, ["device=cpu", "dataset=mnist-5k"])
        rows[f"{name} mnist-5k"] = trained(bundled)
        if has_data(config.dataset):
            rows[f"{name} {config.dataset}"] = trained(config)
    return rows


def has_data(dataset: str) -> bool:
    """Return whether a dataset is on this machine."""
    find = DATASETS[dataset].find
    return find is None or bool(find(data_folder()))


def main(path: str) -> None:
    """Write all hashes to a file, as JSON."""
    os.environ.setdefault("FEDMPDD_THREADS", "1")
    Path(path).write_text(json.dumps({"matrix": matrix(), "shipped": shipped()}), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
