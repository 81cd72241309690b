"""One attack on one codec of one model: made once, kept in a file."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedmpdd.documents import write_atomically
from fedmpdd.privacy import metrics
from fedmpdd.privacy.attacks import ATTACKS, Reconstruction, Setting
from fedmpdd.privacy.case import Case, Float32, device_of, observations_of
from fedmpdd.privacy.config import Audit
from fedmpdd.privacy.linkage import linkage
from fedmpdd.simulation.devices import reproducible_arithmetic


def make_result(audit: Audit, case: Case, text: str, name: str, path: Path, report: Callable[[float], None]) -> None:
    """Attack, compare with the truth, and write what was found."""
    # Problems are small: more threads of PyTorch would only wait for each other, and change last bits.
    with reproducible_arithmetic(audit.config.model_copy(update={"device": device_of(audit.config)})):
        arrays = _attacked(audit, case, text, name, report)

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez_compressed(file, **arrays)

    write_atomically(path, write)


def _attacked(audit: Audit, case: Case, text: str, name: str, report: Callable[[float], None]) -> dict[str, Any]:
    observations = observations_of(audit, case, text)
    first = observations[0].updates[0]
    protection = first.protection
    noisy = protection is not None and protection.noise_deviation > 0
    seen = first.codec.evidence([first.update])
    attack = ATTACKS[name](
        Setting(
            case.curvature,
            seen,
            audit.audit.rounds,
            noisy,
            case.public,
            audit.audit.effort,
            audit.audit.optimiser,
            soft_labels=case.victim.objective is None,
        )
    )
    start = time.perf_counter()
    reconstruction = attack.run(observations, seed=audit.audit.seed, progress=report)
    seconds = time.perf_counter() - start
    ordered = _ordered(reconstruction, case)
    truth = attack.losses_at(observations, case.images, case.labels)
    linked = linkage(observations, case.images, case.labels, case.pool.images, case.pool_labels, seed=audit.audit.seed)
    each = [
        (metrics.ssim(a, b), metrics.mse(a, b), metrics.psnr(a, b))
        for guess, true in zip(ordered.images, case.images, strict=True)
        for a, b in zip(guess, true, strict=True)
    ]
    history = [[snapshot.iteration, median(_ssims(snapshot.images, case.images))] for snapshot in ordered.history]
    return {
        "images": ordered.images,
        "labels": ordered.labels,
        "losses": reconstruction.losses,
        "truth": truth,
        "each": np.array(each),
        "history": np.array(history),
        "linkage": np.array(np.nan if linked is None else linked.share),
        "candidates": np.array(0 if linked is None else linked.candidates),
        "seconds": np.array(seconds),
    }


def _ssims(guesses: Float32, truth: Float32) -> list[float]:
    return [
        metrics.ssim(a, b) for guess, true in zip(guesses, truth, strict=True) for a, b in zip(guess, true, strict=True)
    ]


def _ordered(reconstruction: Reconstruction, case: Case) -> Reconstruction:
    """Put the images of each batch in the order of the true ones: an attacker cannot know it and need not."""
    orders = [metrics.best_order(a, b) for a, b in zip(reconstruction.images, case.images, strict=True)]

    def sort(values: NDArray[Any]) -> NDArray[Any]:
        return np.stack([each[order] for each, order in zip(values, orders, strict=True)])

    return Reconstruction(
        sort(reconstruction.images),
        sort(reconstruction.labels),
        reconstruction.losses,
        tuple(snapshot._replace(images=sort(snapshot.images)) for snapshot in reconstruction.history),
    )
