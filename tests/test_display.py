import pytest

from fedmpdd.display import Rounds


@pytest.mark.parametrize(
    ("uplink", "full", "shown"),
    [
        (1_000, 4_000_000, "uplink 1.0 kB  1/4,000 of FedSGD"),
        (1_000, 1_000, "1/1 of FedSGD"),
        (3_000, 1_000, "uplink 3.0 kB  3.0 times FedSGD"),  # secure sums of many clients
        (0, 1_000, "1/1,000 of FedSGD"),
    ],
)
def test_the_last_round_says_what_was_saved(
    capfd: pytest.CaptureFixture[str], uplink: int, full: int, shown: str
) -> None:
    Rounds("a run", 5, 4, None)(5, 0.5, uplink, full)
    printed = capfd.readouterr().err
    assert "a run: round 5 of 5  accuracy 50.0%" in printed
    assert shown in printed
