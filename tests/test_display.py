import io
import re

import pytest
from rich.console import Console

from fedmpdd.display import Rounds, Sheet, readable_score, table


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


def test_a_score_that_is_no_accuracy_is_a_number(capfd: pytest.CaptureFixture[str]) -> None:
    Rounds("a run", 5, 4, None, "-loss")(5, 0.03125, 1_000, 4_000)
    assert "round 5 of 5  loss 0.03125  uplink" in capfd.readouterr().err
    assert [readable_score(value, "r2") for value in (-7.5294, None)] == ["-7.529", "–"]


LONG = "mycodecs.py:Mine(m=400,family='hadamard',bits=1):keys=partitioned:error_feedback=true:clip=1.0"
METER = ("port", "replies", "up", "up replies", "up per reply", "up replies headers", "up polls", "down")


def comparison(name: str = LONG) -> Sheet:
    columns = {"codec": "left", **dict.fromkeys(("seeds", "trained", "accuracy", "rounds", "uplink"), "right")}
    rows = [[name, "3", "1,500", "88.9 ± 0.3 %", "1,026.0 ± 11.4", "1,848 ± 120 MB"], ["fedsgd", "3"]]
    return table("codecs", columns, rows)


def meter(digits: str) -> Sheet:
    return table("bytes on the socket", dict.fromkeys(METER, "right"), [["9101", "12", *[digits] * 6]])


def printed(sheet: Sheet, width: int) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, markup=False).print(sheet)
    return file.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
@pytest.mark.parametrize("sheet", [comparison(), comparison("qsgd"), meter("1,234"), meter("123,456,789,012")])
def test_nothing_is_cut_at_any_width(sheet: Sheet, width: int) -> None:
    lines = printed(sheet, width)
    assert max(map(len, lines)) <= width
    assert not any("…" in line for line in lines)
    text = "\n".join(lines)
    for cell in (cell for row in sheet._rows for cell in row[1:]):
        assert re.search(rf"(?<![\d,.]){re.escape(cell)}(?![\d,.])", text), cell


def test_a_narrow_terminal_folds_names_then_headings_then_rows() -> None:
    folded = printed(comparison(), 100)
    assert folded[1].split() == ["codec", "seeds", "trained", "accuracy", "rounds", "uplink"]
    assert "".join(line[: folded[1].index("seeds")].strip() for line in folded[2:-1]) == LONG
    headings = printed(meter("1,234"), 64)
    assert [line.split() for line in headings[1:4]] == [
        ["up", "up"],
        ["up", "per", "replies", "up"],
        ["port", "replies", "up", "replies", "reply", "headers", "polls", "down"],
    ]
    below = printed(comparison(), 60)
    assert below == [
        "codecs",
        LONG[:60],
        LONG[60:],
        "  seeds 3  trained 1,500  accuracy 88.9 ± 0.3 %",
        "  rounds 1,026.0 ± 11.4  uplink 1,848 ± 120 MB",
        "fedsgd",
        "  seeds 3",
    ]
