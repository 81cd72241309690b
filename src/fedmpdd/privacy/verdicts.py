"""From numbers to words a reviewer can quote."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from fedmpdd.pages.verdicts import (
    CANDIDATES,
    INCONCLUSIVE,
    LINKED,
    LINKS,
    NOTHING,
    PARTLY,
    RECONSTRUCTED,
    is_linked,
    with_linkage,
)

CLEAR = 0.8  # an SSIM from which on anybody would call it the same image
BEYOND = 0.1  # by so much the SSIM must exceed that of the class mean to count


@dataclass(frozen=True)
class Evidence:
    """What one attack achieved: numbers per image, or per image of every batch."""

    ssim: Sequence[float]
    class_mean_ssim: Sequence[float]
    control_ssim: Sequence[float]  # the same attack on the whole gradient
    truth_fits_better: Sequence[bool]  # the true image has a lower loss than what was found
    linkage: float | None = None  # share of the images that were found among others; None where it was not measured
    candidates: int = CANDIDATES  # among so many

    @property
    def linked(self) -> bool:
        """Whether updates are linked to the images that they were made of."""
        return is_linked(self.linkage, len(self.ssim), self.candidates)


def verdict(evidence: Evidence) -> str:
    """Return one of the five verdicts."""
    return with_linkage(_on_reconstruction(evidence), evidence.linked)


def _on_reconstruction(evidence: Evidence) -> str:
    beyond = _beyond(evidence.ssim, evidence.class_mean_ssim)
    if median(evidence.ssim) >= CLEAR and beyond:
        return RECONSTRUCTED
    pairs = zip(evidence.ssim, evidence.class_mean_ssim, strict=True)
    if beyond or any(a >= CLEAR and _gain(a, b) >= 0 for a, b in pairs):
        return PARTLY  # one victim is one too many
    if not _beyond(evidence.control_ssim, evidence.class_mean_ssim):
        return INCONCLUSIVE  # it cannot even attack a gradient that hides nothing
    if sum(evidence.truth_fits_better) * 2 > len(evidence.truth_fits_better):
        return INCONCLUSIVE  # it was stuck: a better optimiser may find more
    return NOTHING


def _beyond(ssim: Sequence[float], class_mean: Sequence[float]) -> bool:
    return median(_gain(a, b) for a, b in zip(ssim, class_mean, strict=True)) >= 0


def _gain(ssim: float, class_mean: float) -> float:
    """By how much an image is better than it must be to count; where classes look alike, half of what is left to 1."""
    return ssim - class_mean - max(min(BEYOND, (1 - class_mean) / 2), 1e-6)


def strongest(verdicts: Sequence[str], stuck: Sequence[bool]) -> str:
    """The verdict on a codec: of its attacks the one that got furthest.

    Linked is less than partly, and more than nothing. Nothing only if some attack was conclusive and none was stuck:
    where the truth fits better than what an attack found, a weaker attack that has come to its end says nothing about a
    better one.
    """
    for word in (RECONSTRUCTED, PARTLY, LINKED):
        if word in verdicts:
            return word
    is_open = any(word == INCONCLUSIVE and is_stuck for word, is_stuck in zip(verdicts, stuck, strict=True))
    return NOTHING if NOTHING in verdicts and not is_open else INCONCLUSIVE


def sentence(
    codec: str,
    attack: str,
    word: str,
    ssim: float,
    class_mean: float,
    control: float,
    linkage: float | None = None,
    candidates: int = CANDIDATES,
) -> str:
    """A verdict in words."""
    numbers = f"SSIM {ssim:.2f}; class mean {class_mean:.2f}; the same attack on the whole gradient {control:.2f}"
    if linkage is not None:
        numbers += f"; linkage {linkage:.0%} among {candidates}"
    words = {
        RECONSTRUCTED: "recovers the private images",
        PARTLY: "recovers more than the class of the private images",
        LINKED: LINKS,
        NOTHING: "recovers nothing beyond the class mean; this is no guarantee against a better attack",
        INCONCLUSIVE: "is inconclusive: it failed where nothing was hidden, or was stuck",
    }
    return f"{codec}: {attack} {words[word]} ({numbers})."
