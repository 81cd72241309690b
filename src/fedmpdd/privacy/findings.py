"""What an audit found, row by row, from the cells of its attacks."""

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from fedmpdd.privacy.config import Audit
from fedmpdd.privacy.meter import meter, revealed_bits
from fedmpdd.privacy.scene import Scene
from fedmpdd.privacy.verdicts import Evidence, sentence, strongest, verdict
from fedmpdd.simulation.engine import partition_of

CONTROL = "fedsgd"
Cells = dict[tuple[str, str], dict[str, Any]]  # the arrays of a cell, by codec and attack


@dataclass(frozen=True)
class Row:
    """One attack on one codec; numbers are medians over images unless they say otherwise."""

    model: str
    codec: str
    attack: str
    ssim: float
    control_ssim: float
    class_mean_ssim: float
    mse: float
    psnr: float
    labels_found: float  # share
    linkage: float | None  # share of images found among 100 of their class
    truth_fits_better: float  # share of problems where the optimiser was stuck
    bits_revealed: int
    verdict: str
    sentence: str
    ssim_each: list[float] = field(default_factory=list)
    seconds: float = 0.0
    history: list[list[float]] = field(default_factory=list)  # iteration and median SSIM, for the page

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


@dataclass(frozen=True)
class Section:
    """One model's share of the results, with what the page shows of it."""

    audit: Audit
    scene: Scene
    guesses: dict[str, list[float]]
    cells: Cells
    rows: list[Row]


def row_of(audit: Audit, scene: Scene, text: str, attack: str, cells: Cells, class_mean: list[float]) -> Row:
    """Return what one attack found of one codec, beside what it finds of the control.

    class_mean: SSIM per image of the mean image of the right class.
    """
    cell, control = cells[text, attack], cells[CONTROL, attack]
    ssim, control_ssim = cell["each"][:, 0].tolist(), control["each"][:, 0].tolist()
    # A hair's breadth is no better fit: both losses end in rounding errors.
    better = cell["truth"] < 0.999 * cell["losses"] - 1e-12
    found = verdict(Evidence(ssim, class_mean, control_ssim, better.tolist()))
    numbers = (median(ssim), median(class_mean), median(control_ssim))
    linked = float(cell["linkage"])
    codec = scene.codec(audit, text).largest()
    return Row(
        model=audit.config.model,
        codec=text,
        attack=attack,
        ssim=numbers[0],
        control_ssim=numbers[2],
        class_mean_ssim=numbers[1],
        mse=float(np.median(cell["each"][:, 1])),
        psnr=float(min(np.median(cell["each"][:, 2]), 200.0)),
        labels_found=float((cell["labels"] == scene.labels).mean()),
        linkage=None if np.isnan(linked) else linked,
        truth_fits_better=float(better.mean()),
        bits_revealed=audit.audit.rounds * revealed_bits(codec, len(scene.flat)),
        verdict=found,
        sentence=sentence(text, attack, found, *numbers),
        ssim_each=ssim,
        seconds=float(cell["seconds"]),
        history=cell["history"].tolist(),
    )


def codec_summary(audit: Audit, scene: Scene, text: str, rows: list[Row]) -> dict[str, Any]:
    """Return the verdict on a codec, of all attacks the strongest, and what the meter counts."""
    own = [row for row in rows if row.codec == text]
    config = audit.config
    codec = scene.codec(audit, text)
    partition = partition_of(config, scene.pool.labels)
    some = range(min(config.clients, 100))
    count = meter(
        codec,
        len(scene.flat),
        rounds=config.rounds,
        participation=config.per_round / config.clients,
        examples_per_client=float(np.mean([partition.examples_of(client).size for client in some])),
        bits_per_example=scene.bits_per_image,
    )
    return {
        "model": config.model,
        "codec": text,
        "verdict": strongest([row.verdict for row in own], [row.truth_fits_better > 0.5 for row in own]),
        "meter": count.as_dict(),
    }
