import pytest

from fedmpdd.pages.verdicts import INCONCLUSIVE, NOTHING, PARTLY, RECONSTRUCTED
from fedmpdd.privacy.verdicts import Evidence, sentence, strongest, verdict

CLASS_MEAN = [0.3, 0.2, 0.4]
GOOD = [0.95, 0.9, 1.0]


@pytest.mark.parametrize(
    ("ssim", "control", "stuck", "expected"),
    [
        (GOOD, GOOD, [False] * 3, RECONSTRUCTED),
        ([0.5, 0.45, 0.6], GOOD, [False] * 3, PARTLY),
        ([0.1, 0.1, 0.95], GOOD, [False] * 3, PARTLY),  # one of three is one too many
        (CLASS_MEAN, GOOD, [False] * 3, NOTHING),
        ([0.0, 0.0, 0.1], GOOD, [False] * 3, NOTHING),
        ([0.0, 0.0, 0.1], [0.1, 0.0, 0.2], [False] * 3, INCONCLUSIVE),  # it cannot even attack a whole gradient
        ([0.0, 0.0, 0.1], GOOD, [True, True, False], INCONCLUSIVE),  # the truth fits better: it was stuck
        (GOOD, [0.0] * 3, [True] * 3, RECONSTRUCTED),  # a success needs no control
    ],
)
def test_verdicts(ssim: list[float], control: list[float], stuck: list[bool], expected: str) -> None:
    assert verdict(Evidence(ssim, CLASS_MEAN, control, stuck)) == expected


def test_the_strongest_attack_decides() -> None:
    assert strongest([NOTHING, PARTLY], [False, True]) == PARTLY
    assert strongest([RECONSTRUCTED, PARTLY], [False, False]) == RECONSTRUCTED
    assert strongest([NOTHING, INCONCLUSIVE], [False, False]) == NOTHING  # the other cannot attack at all
    assert strongest([NOTHING, INCONCLUSIVE], [False, True]) == INCONCLUSIVE  # the other was stuck
    assert strongest([NOTHING, NOTHING], [True, False]) == NOTHING
    assert strongest([INCONCLUSIVE], [False]) == INCONCLUSIVE


def test_a_sentence_can_be_quoted_alone() -> None:
    words = sentence("mpdd:m=400", "adaptive", RECONSTRUCTED, 0.97, 0.31, 0.99)
    assert words.startswith("mpdd:m=400: adaptive recovers the private images")
    assert "0.97" in words
    assert "no guarantee" in sentence("x", "y", NOTHING, 0.1, 0.3, 0.9)
