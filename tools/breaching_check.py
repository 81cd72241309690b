"""Attack the same gradients with this project's attacks and with those of the `breaching` library, and compare SSIM.

    python tools/breaching_check.py [mnist|fashion-mnist|cifar-10] [--data-dir FOLDER] [--images N]

The library is not a dependency: pip install --no-deps breaching==0.1.2 && pip install hydra-core. It imports
torchvision but needs nothing of it here, so where torchvision is missing an empty stand-in takes its place.

Victim: LeNet with weights from U(−0.5, 0.5), one image, the whole gradient. Inverting Gradients is granted the label,
Deep Leakage finds it. The library's total variation is for three channels only; on grey images both sides go without.
"""

import argparse
import contextlib
import copy
import importlib
import importlib.util
import sys
import time
import types
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedmpdd.codecs import FedSGD
from fedmpdd.directions import Key
from fedmpdd.privacy.attacks.base import Attack
from fedmpdd.privacy.attacks.dlg import DLG
from fedmpdd.privacy.attacks.inverting_gradients import InvertingGradients
from fedmpdd.privacy.metrics import ssim
from fedmpdd.privacy.observation import Observation, Victim, observe
from fedmpdd.tasks import models
from fedmpdd.tasks.data import load

CLOSE = 0.1  # SSIM
TV = 1e-2
INVERTING_ITERATIONS = 2_400
LEAKAGE_ITERATIONS = 60  # of the library's, each 20 steps of L-BFGS
STARTS = 2  # of Deep Leakage: it fails from some, on either side


def stand_in_for_torchvision() -> None:
    """Offer the names that the library looks up while it is imported; its own models and data sets will not work."""
    names = ("", ".models", ".models.densenet", ".transforms", ".datasets", ".datasets.utils", ".utils")
    for name in names:
        full = f"torchvision{name}"
        sys.modules[full] = types.ModuleType(full)
        parent, _, child = full.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, sys.modules[full])
    vars(sys.modules["torchvision.models.densenet"])["_DenseLayer"] = torch.nn.Module  # a base class of one of its own
    vars(sys.modules["torchvision.datasets.utils"])["download_and_extract_archive"] = None


def import_breaching() -> Any:
    """Return the library, or say what is missing and leave."""
    missing = [name for name in ("breaching", "hydra", "scipy") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"nothing to compare with, {', '.join(missing)} cannot be imported; see the top of this file")
    if importlib.util.find_spec("torchvision") is None:
        stand_in_for_torchvision()
    return importlib.import_module("breaching")


def theirs(breaching: Any, attack: str, overrides: list[str], observation: Observation) -> NDArray[np.float32]:
    """The library's reconstruction [channels, height, width] of one observation, from nothing else than our attacks."""
    omegaconf = importlib.import_module("omegaconf")
    victim, sight = observation.victim, observation.sights[0]
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")  # about Hydra's versions
        config = breaching.get_attack_config(attack, overrides)
    module = copy.deepcopy(victim.model.module).requires_grad_(True)
    attacker = breaching.attacks.prepare_attack(module, torch.nn.CrossEntropyLoss(), config)
    about_data = {
        "shape": list(victim.shape),
        "classes": victim.classes,
        "modality": "vision",
        "task": "classification",
        "mean": list(victim.mean),
        "std": list(victim.std),
    }
    model = {
        "parameters": list(victim.model.unflatten(sight.flat).values()),
        "buffers": [],
        "metadata": omegaconf.OmegaConf.create(about_data),
    }
    shared = {
        "gradients": list(victim.model.unflatten(sight.decoded).values()),
        "buffers": None,
        "metadata": {"num_data_points": 1, "labels": observation.labels, "local_hyperparams": None},
    }
    found, _ = attacker.reconstruct([model], [shared], server_secrets={})
    image: NDArray[np.float32] = found["data"][0].detach().numpy()
    return image


def compare(breaching: Any, dataset: str, folder: Path | None, count: int) -> bool:
    """Print SSIM of both for every image and attack; return whether all are close."""
    train = load(dataset, folder).train
    images = (train.images[:count] / 255).astype(np.float32)
    shape = images.shape[1:]
    model, flat = models.build("lenet", shape, 10, init="uniform", seed=1)
    victim = Victim(model, shape, 10, (0.0,) * shape[0], (1.0,) * shape[0])
    tv = TV if shape[0] == 3 else 0.0
    attacks: list[tuple[Attack, str, list[str], bool]] = [
        (
            InvertingGradients(iterations=INVERTING_ITERATIONS, tv=tv),
            "invertinggradients",
            [f"optim.max_iterations={INVERTING_ITERATIONS}", f"regularization.total_variation.scale={tv}"],
            True,
        ),
        (
            DLG(restarts=STARTS),
            "deepleakage",
            [f"optim.max_iterations={LEAKAGE_ITERATIONS}", f"restarts.num_trials={STARTS}"],
            False,
        ),
    ]
    close = True
    for attack, name, overrides, grant in attacks:
        for i in range(count):
            label = train.labels[i : i + 1].astype(np.int64)
            observation = observe(victim, [flat], FedSGD(), [Key(i)], images[i : i + 1], label, grant_labels=grant)
            began = time.perf_counter()
            own = ssim(attack.run([observation], seed=i).images[0, 0], images[i])
            between = time.perf_counter()
            torch.manual_seed(i)
            other = ssim(theirs(breaching, name, overrides, observation), images[i])
            ended = time.perf_counter()
            close = close and abs(own - other) <= CLOSE
            print(
                f"{dataset} {i}: {attack.name} {own:.3f} ({between - began:.0f} s), "
                f"breaching {name} {other:.3f} ({ended - between:.0f} s)"
                + ("" if abs(own - other) <= CLOSE else f"   differs by more than {CLOSE}"),
                flush=True,
            )
    return close


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare our attacks with the breaching library's on equal gradients.")
    parser.add_argument("dataset", nargs="?", default="mnist", choices=["mnist", "fashion-mnist", "cifar-10"])
    parser.add_argument("--data-dir", type=Path, help="folder with the datasets; default: FEDMPDD_DATA")
    parser.add_argument("--images", type=int, default=3, help="how many images, the first of the training set")
    given = parser.parse_args()
    torch.set_num_threads(1)  # networks this small are slower on several
    sys.exit(0 if compare(import_breaching(), given.dataset, given.data_dir, given.images) else 1)
