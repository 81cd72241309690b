"""What the tool that keeps results does with a table that was measured in parts."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.documents import write_json
from fedmpdd.pages.verdicts import NOTHING
from fedmpdd_paper.tables import load_table, table_names
from tests.report.fixtures import audit_row

TOOL = Path(__file__).parents[2] / "tools" / "keep_results.py"
TABLE = load_table("mnist-iid-logistic")


@pytest.fixture(scope="module")
def tool() -> Any:
    spec = importlib.util.spec_from_file_location("keep_results", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_kept_attacks_are_judged_by_their_linkage_again(tool: Any, tmp_path: Path) -> None:
    rows = [
        audit_row("fedsgd", "dlg", "reconstructed", 0.9, linkage=1.0),
        audit_row("mpdd:m=4", "dlg", "nothing beyond the class mean", 0.2, linkage=1.0, ssim_each=[0.2] * 8),
        audit_row("mpdd:m=5", "dlg", "nothing beyond the class mean", 0.2, linkage=0.125, ssim_each=[0.2] * 8),
    ]
    codecs = [{"model": row["model"], "codec": row["codec"], "verdict": row["verdict"]} for row in rows]
    before = {"rows": rows, "codecs": codecs, "config": {}}
    (tmp_path / "a").mkdir()
    write_json(tmp_path / "a" / "audit.json", before)
    write_json(tmp_path / "other.json", {"rows": [{"verdict": "holds"}]})
    tool.judge_again(tmp_path)
    after = json.loads((tmp_path / "a" / "audit.json").read_text())
    assert [codec["verdict"] for codec in after["codecs"]] == ["reconstructed", "linked", NOTHING]
    for old, new in zip(rows, after["rows"], strict=True):
        told = ("verdict", "sentence")
        assert {key: old[key] for key in old if key not in told} == {key: new[key] for key in new if key not in told}
    assert json.loads((tmp_path / "other.json").read_text()) == {"rows": [{"verdict": "holds"}]}


def test_no_kept_attack_has_a_green_word_beside_full_linkage(tool: Any) -> None:
    for path in tool.DOCS.rglob("*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        for row in document.get("rows", []) if isinstance(document, dict) else []:
            if (row.get("linkage") or 0) >= 0.5:
                assert row["verdict"] not in (NOTHING, "inconclusive"), (path, row["codec"])


def kept(tool: Any) -> list[tuple[dict[str, Any], Any]]:
    paths = [(tool.DOCS / "tables" / f"{name}.json", load_table(name)) for name in table_names()]
    return [(json.loads(path.read_text(encoding="utf-8")), table) for path, table in paths if path.is_file()]


def test_bare_frames_are_what_the_paper_counts(tool: Any) -> None:
    """Summed from the lengths of frames, round by round; "goals" says so of every row that it compares."""
    compared = 0
    for before, table in kept(tool):
        counted = {row["codec"]: row["ours"] for row in before["rows"]}
        for row in tool.in_bare_frames(before, table)["rows"]:
            for key in ("bytes_to_target", "bytes_to_harder"):
                assert row["ours"][key]["mean"] == counted[row["codec"]][key]["mean"], (table.name, row["codec"])
                compared += 1
    assert compared > 200


def test_the_page_of_goals_is_that_of_the_kept_tables(tool: Any) -> None:
    page = (tool.DOCS / "goals.md").read_text(encoding="utf-8")
    assert page == tool._goals()
    assert "| 121 (17 B) | 65,800 |" in page
    assert "| 110 (9 to 60 B) | 7,070 |" in page


def results(value: int, *places: int, target: float = 0.6) -> dict[str, Any]:
    rows = [{"codec": TABLE.methods[place].codec, "value": value} for place in places]
    return {"table": TABLE.name, "target": target, "harder": 0.8, "budget": 1, "rows": rows}


def placed(joined: dict[str, Any]) -> list[tuple[int, int]]:
    codecs = [method.codec for method in TABLE.methods]
    return [(codecs.index(row["codec"]), row["value"]) for row in joined["rows"]]


def test_rows_kept_before_stay_in_the_order_of_the_table_and_new_ones_win(tool: Any) -> None:
    assert placed(tool.joined(TABLE, results(1, 0, 3, 5), results(2, 5, 1))) == [(0, 1), (1, 2), (3, 1), (5, 2)]


def test_attacks_that_were_made_before_stay_unless_there_are_new_ones(tool: Any) -> None:
    before, now = results(1, 0, 1, 2), results(2, 0, 1)
    for row in before["rows"]:
        row["audit"] = "old"
    now["rows"][1]["audit"] = "new"
    rows = tool.joined(TABLE, before, now)["rows"]
    assert [(row["value"], row["audit"]) for row in rows] == [(2, "old"), (2, "new"), (1, "old")]


def test_rows_that_the_table_no_longer_has_go(tool: Any) -> None:
    before = results(1, 0)
    before["rows"].append({"codec": "mpdd:m=1234567", "value": 1})
    assert placed(tool.joined(TABLE, before, results(2, 2))) == [(0, 1), (2, 2)]


def test_rows_of_other_targets_go(tool: Any) -> None:
    assert placed(tool.joined(TABLE, results(1, 0, 3, target=0.5), results(2, 1))) == [(1, 2)]
