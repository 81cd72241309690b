import json
import re
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.errors import RunError
from fedmpdd.report import Goals, collect, write_report
from fedmpdd.report.page import render
from tests.report.fixtures import audit_row, make_audit, make_run, make_runs

NASTY = "<script>alert(1)</script>&\"'"


def without_plotly(page: str) -> str:
    """Plotly's own source holds words that are forbidden to us."""
    return re.sub(r"<script>/\*\*\n\* plotly.js.*?</script>", "", page, flags=re.DOTALL)


def test_the_page_holds_everything_and_loads_nothing(tmp_path: Path) -> None:
    make_runs(tmp_path)
    make_audit(tmp_path / "z")
    page = render(collect([tmp_path]), Goals((0.7,), (50,)))
    assert page.count("* plotly.js v") == 1
    text = without_plotly(page)
    assert len(text) < 100_000
    for word in (
        "logistic on mnist-5k", "To 70 % test accuracy", "500 ± 141 B", "1/10", "Accuracy with 50 B", "70.0 ± 7.1 %",
        "reconstructed", "nothing beyond the class mean", "Where they differ", "Versions and machine",
        "width=device-width",
    ):  # fmt: skip
        assert word in text, word
    assert "http://" not in text
    assert "https://" not in text
    assert " src=" not in text
    assert page == render(collect([tmp_path]), Goals((0.7,), (50,)))


def test_what_comes_from_folders_is_escaped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "<b>run", {6: 0.5}, model=f"mine:{NASTY}", rounds=6)
    (folder / "environment.json").write_text(json.dumps([{"platform": NASTY}]))
    rows = [audit_row(NASTY, NASTY, NASTY, 0.5, model=NASTY, sentence=NASTY)]
    make_audit(tmp_path / "audit", rows, dataset=NASTY)
    text = without_plotly(render(collect([tmp_path])))
    assert "<script>alert" not in text
    assert "<b>run" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&amp;&#34;&#39;" in text
    data = re.search(r'id="data">(.*?)</script>', text, flags=re.DOTALL)
    assert data is not None
    assert json.loads(data[1])["tasks"][0][0]["name"] == "fedsgd"


def test_unfinished_runs_and_audits_are_shown_as_such(tmp_path: Path) -> None:
    make_run(tmp_path / "cut", {2: 0.5}, done=3)
    (make_audit(tmp_path / "audit") / "results.json").unlink()
    text = without_plotly(render(collect([tmp_path]), Goals((0.5,))))
    assert "its numbers are those after 3 of 6 rounds" in text
    assert "unfinished: 3 of 6" in text
    assert "0 attacks done, no verdicts yet" in text


def test_runs_that_ended_early_say_so(tmp_path: Path) -> None:
    make_run(tmp_path / "a", {2: 0.8}, seed=1, done=2, ended=True)
    make_run(tmp_path / "b", {4: 0.8}, seed=2, done=4, ended=True)
    text = without_plotly(render(collect([tmp_path])))
    assert ">2 to 4 of 6<" in text
    assert text.count("ended before 6") == 2
    assert "Unfinished" not in text


def test_an_audit_alone_is_shown_with_its_bars_and_what_was_counted(tmp_path: Path) -> None:
    page = render(collect([make_audit(tmp_path / "audit")]))
    assert "<title>What an attacker gets</title>" in page
    assert page.count('class="plot"') == 1  # this audit kept no curves
    assert "What counting alone says" in page


def test_the_verdict_on_a_codec_is_that_of_its_strongest_attack(tmp_path: Path) -> None:
    rows = [
        audit_row("mpdd:m=4", "dlg", "inconclusive", 0.3),
        audit_row("mpdd:m=4", "adaptive", "nothing beyond the class mean", 0.2),
    ]
    page = without_plotly(render(collect([make_audit(tmp_path / "audit", rows)])))
    line = re.search(r"<li><strong>mpdd:<wbr>m=4</strong>.*?</li>", page, flags=re.DOTALL)
    assert line is not None
    assert "nothing beyond the class mean" in line[0]
    assert "strongest attack: adaptive, SSIM 0.20" in line[0]


def test_an_audit_without_its_picture_says_so(tmp_path: Path) -> None:
    (make_audit(tmp_path / "audit") / "logistic.png").unlink()
    assert "reconstructions is missing" in render(collect([tmp_path / "audit"]))


def test_a_page_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    found = collect([make_runs(tmp_path / "runs")])
    page = tmp_path / "report.html"
    page.write_text("old")
    write_report(page, found)
    assert page.read_text(encoding="utf-8").endswith("</html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["report.html", "runs"]
    with pytest.raises(RunError, match="cannot be written"):
        write_report(tmp_path / "missing" / "report.html", found)


def test_a_score_that_is_no_accuracy_is_shown_as_what_it_is(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"metric": "loss", "loss": "torch.nn.functional:mse_loss", "model": "object:Net#2"}
    make_run(tmp_path / "a", {2: 3.0, 6: 0.25}, **settings)
    make_run(tmp_path / "b", {2: 2.0, 6: 0.5}, codec={"name": "mpdd", "m": 4}, uplink=1000, **settings)
    text = without_plotly(render(collect([tmp_path]), Goals((2.5,), (450,))))
    for word in (
        "Net#2 on mnist-5k", "final loss", "To 2.5 test loss", "Loss with 450 B of uplink", "Test loss against rounds",
        "+0.25", "loss 0.25", "Of loss, lower is better", "3.33 times more",
    ):  # fmt: skip
        assert word in text, word
    assert "ccuracy" not in text.partition("<main>")[2].partition("Settings")[0].replace('data-quantity="accuracy"', "")
    assert "points" not in text.partition("<main>")[2].partition("</main>")[0]


def test_names_are_whole(tmp_path: Path) -> None:
    codec = {"name": "mpdd", "m": 4, "bits": 1, "family": "hadamard", "keys": "partitioned"}
    make_run(tmp_path / "a", {6: 0.5}, codec=codec, rounds=6)
    text = without_plotly(render(collect([tmp_path])))
    assert text.count("mpdd:<wbr>m=4:<wbr>bits=1:<wbr>family=hadamard:<wbr>keys=partitioned") >= 3
    assert "text-overflow" not in text
