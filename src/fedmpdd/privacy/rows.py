"""What an audit found, row by row, from the results of its attacks."""

from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import numpy as np

from fedmpdd.pages.verdicts import CANDIDATES
from fedmpdd.privacy.case import Case
from fedmpdd.privacy.config import Audit
from fedmpdd.privacy.leakage import meter
from fedmpdd.privacy.verdicts import Evidence, sentence, strongest, verdict
from fedmpdd.simulation.tasks import partition_of

CONTROL = "fedsgd"
AttackResults = dict[tuple[str, str], dict[str, Any]]  # the arrays of each, by codec and attack


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
    linkage: float | None  # share of images found among others of their class
    truth_fits_better: float  # share of problems where the optimiser was stuck
    bits_revealed: int
    verdict: str
    sentence: str
    ssim_each: list[float] = field(default_factory=list)
    seconds: float = 0.0
    history: list[list[float]] = field(default_factory=list)  # iteration and median SSIM, for the page
    candidates: int = CANDIDATES  # that linkage told each image from, itself among them

    def as_dict(self) -> dict[str, Any]:
        """Return the row as it stands in the JSON document."""
        return asdict(self)


@dataclass(frozen=True)
class Section:
    """One model's share of the results, with what the page shows of it."""

    audit: Audit
    case: Case
    guesses: dict[str, list[float]]
    results: AttackResults
    rows: list[Row]


def row_of(audit: Audit, case: Case, text: str, attack: str, results: AttackResults, class_mean: list[float]) -> Row:
    """Return what one attack found of one codec, beside what it finds of the control.

    class_mean: SSIM per image of the mean image of the right class.
    """
    result, control = results[text, attack], results[CONTROL, attack]
    ssim, control_ssim = result["each"][:, 0].tolist(), control["each"][:, 0].tolist()
    # A hair's breadth is no better fit: both losses end in rounding errors.
    better = result["truth"] < 0.999 * result["losses"] - 1e-12
    share = float(result["linkage"])
    linkage = None if np.isnan(share) else share
    candidates = int(result.get("candidates", CANDIDATES))  # attacks of earlier versions had so many
    word = verdict(Evidence(ssim, class_mean, control_ssim, better.tolist(), linkage, candidates))
    numbers = (median(ssim), median(class_mean), median(control_ssim))
    codec = case.codec(audit, text).largest()
    return Row(
        model=audit.config.model,
        codec=text,
        attack=attack,
        ssim=numbers[0],
        control_ssim=numbers[2],
        class_mean_ssim=numbers[1],
        mse=float(np.median(result["each"][:, 1])),
        psnr=float(min(np.median(result["each"][:, 2]), 200.0)),
        labels_found=float((result["labels"] == case.labels).mean()),
        linkage=linkage,
        candidates=candidates,
        truth_fits_better=float(better.mean()),
        bits_revealed=audit.audit.rounds * codec.revealed_bits(len(case.flat)),
        verdict=word,
        sentence=sentence(text, attack, word, *numbers, linkage, candidates),
        ssim_each=ssim,
        seconds=float(result["seconds"]),
        history=result["history"].tolist(),
    )


def codec_summary(audit: Audit, case: Case, text: str, rows: list[Row]) -> dict[str, Any]:
    """Return the verdict on a codec, of all attacks the strongest, and what the meter counts."""
    of_codec = [row for row in rows if row.codec == text]
    config = audit.config
    codec = case.codec(audit, text)
    partition = partition_of(config, case.pool.labels)
    some = range(min(config.clients, 100))
    count = meter(
        codec,
        len(case.flat),
        rounds=config.rounds,
        participation=config.per_round / config.clients,
        examples_per_client=float(np.mean([partition.examples_of(client).size for client in some])),
        bits_per_example=case.bits_per_image,
    )
    return {
        "model": config.model,
        "codec": text,
        "verdict": strongest([row.verdict for row in of_codec], [row.truth_fits_better > 0.5 for row in of_codec]),
        "meter": count.as_dict(),
    }
