"""The words of verdicts, and how linkage counts in them; in the room of pages, so that old audits are judged as new."""

import math

RECONSTRUCTED, PARTLY, LINKED, NOTHING, INCONCLUSIVE = (
    "reconstructed",
    "partly",
    "linked",
    "nothing beyond the class mean",
    "inconclusive",
)
CANDIDATES = 100  # images that one is told from, itself among them, where there are so many
# Somebody who guesses finds more in one audit of a hundred: of 8 images among 100 each, two. Fewer may be luck.
BY_CHANCE = 0.01
# However few there were to choose from: a method that finds every second client links clients.
MOST = 0.5


def is_linked(linkage: float | None, images: int, candidates: int = CANDIDATES) -> bool:
    """Return whether updates are linked to the images that they were made of.

    Args:
        linkage: the share of images that was found; None where it was not measured.
        images: how many there were.
        candidates: how many each was told from.

    Example:
        >>> [is_linked(share, 8) for share in (None, 0.0, 1 / 8, 2 / 8, 1.0)]
        [False, False, False, True, True]

    """
    if linkage is None or images < 1:
        return False
    matches = round(linkage * images)
    return matches > 0 and (linkage >= MOST or luck(matches, images, 1 / max(1, candidates)) <= BY_CHANCE)


def luck(matches: int, count: int, chance: float) -> float:
    """Return how often somebody who guesses finds as many or more.

    Args:
        matches: how many were identified.
        count: of how many.
        chance: of one guess.

    Example:
        >>> round(luck(1, 8, 0.01), 3)
        0.077

    """
    return sum(math.comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in range(matches, count + 1))


def with_linkage(word: str, linked: bool) -> str:
    """Return a verdict on reconstruction as linkage leaves it: who links a client needs no picture.

    Args:
        word: the verdict.
        linked: see `is_linked`.

    Example:
        >>> with_linkage("nothing beyond the class mean", True)
        'linked'

    """
    return LINKED if linked and word not in (RECONSTRUCTED, PARTLY) else word


LINKS = "recovers no image, but the update tells which of several images it was made of"


def linked_sentence(sentence: str, linkage: float) -> str:
    """Return the sentence of an earlier version's verdict as it reads where updates are linked.

    Args:
        sentence: as `fedmpdd.privacy.verdicts.sentence` words them: codec: attack, what it does, numbers in brackets.
        linkage: the share of images that was found.

    Example:
        >>> linked_sentence("mpdd:m=9: dlg is inconclusive: it was stuck (SSIM 0.10).", 1.0)[-44:]
        'made of (SSIM 0.10; linkage 100% among 100).'

    """
    start, _, rest = sentence.partition(": ")
    attack = rest.partition(" ")[0]
    numbers = sentence[sentence.rindex("(") + 1 : sentence.rindex(")")] if "(" in sentence else ""
    head = f"{numbers}; " if numbers else ""
    return f"{start}: {attack} {LINKS} ({head}linkage {linkage:.0%} among {CANDIDATES})."
