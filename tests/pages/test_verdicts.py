import pytest

from fedmpdd.pages.verdicts import (
    INCONCLUSIVE,
    LINKED,
    NOTHING,
    PARTLY,
    RECONSTRUCTED,
    is_linked,
    linked_sentence,
    with_linkage,
)


@pytest.mark.parametrize(
    ("linkage", "images", "candidates", "expected"),
    [
        (None, 8, 100, False),  # not measured
        (0.0, 8, 100, False),
        (1 / 8, 8, 100, False),  # one of eight: a guess finds as much in one audit of thirteen
        (2 / 8, 8, 100, True),
        (1.0, 8, 100, True),
        (2 / 8, 8, 10, False),  # by chance, among ten each
        (1.0, 1, 10, True),  # no green word beside 100 %
        (0.05, 1_000, 100, True),  # few of many are more than chance
        (0.015, 1_000, 100, False),
    ],
)
def test_linked_is_what_guessing_hardly_finds(
    linkage: float | None, images: int, candidates: int, expected: bool
) -> None:
    assert is_linked(linkage, images, candidates) is expected


def test_who_links_a_client_needs_no_picture() -> None:
    words = (RECONSTRUCTED, PARTLY, LINKED, NOTHING, INCONCLUSIVE)
    assert [with_linkage(word, True) for word in words] == [RECONSTRUCTED, PARTLY, LINKED, LINKED, LINKED]
    assert [with_linkage(word, False) for word in words] == list(words)


def test_an_earlier_sentence_is_worded_again_with_its_numbers() -> None:
    told = "mpdd:m=9: dlg recovers nothing beyond the class mean; this is … (SSIM 0.10; class mean 0.30)."
    sentence = linked_sentence(told, 1.0)
    assert sentence.startswith("mpdd:m=9: dlg recovers no image, but the update tells which")
    assert sentence.endswith("(SSIM 0.10; class mean 0.30; linkage 100% among 100).")
