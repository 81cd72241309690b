"""The command from end to end on the bundled digits, with so little effort that it takes seconds."""

import json
from pathlib import Path
from typing import Any

import pytest
from plotly.offline import get_plotlyjs

from fedmpdd.errors import ConfigError, RunError
from fedmpdd.privacy.audit import CELLS, PAGE, RESULTS, run_audit
from fedmpdd.privacy.config import load_audit

CHANGES = [
    "dataset=mnist-5k",
    "audit.models=[]",
    "model=logistic",
    "audit.images=2",
    "audit.effort=0.02",
    'audit.attacks=["adaptive"]',
]
CODECS = "mpdd:m=300,mpdd:m=20:bits=1,mpdd:m=50:clip=1:noise_multiplier=2.0"


def small(codecs: str = CODECS, *more: str) -> Any:
    return load_audit("audit-mnist", [*CHANGES, *more], codecs=codecs)


def test_an_audit_is_written_and_goes_on_where_it_was(tmp_path: Path) -> None:
    shares: list[float] = []
    results = run_audit(small(), tmp_path / "a", progress=lambda _, share: shares.append(share))
    assert shares == sorted(shares)
    assert json.loads((tmp_path / "a" / RESULTS).read_text()) == json.loads(json.dumps(results))
    rows = {row["codec"]: row for row in results["rows"]}
    assert list(rows) == ["fedsgd", *CODECS.split(",")]
    assert rows["mpdd:m=300"]["bits_revealed"] == 9_600
    assert {"codec", "attack", "ssim", "control_ssim", "bits_revealed", "verdict"} <= set(rows["fedsgd"])
    assert all(row["control_ssim"] == rows["fedsgd"]["ssim"] for row in rows.values())
    page = (tmp_path / "a" / PAGE).read_text(encoding="utf-8")
    assert " src=" not in page.replace(get_plotlyjs(), "")
    assert page.count('class="image"') == 2 * 5  # originals and four codecs
    assert page.count('class="plot"') == 2  # bars by codec, and curves over the iterations
    for word in ("Median SSIM against iterations", "What counting alone says", "T·m/d", "guesses that need no update"):
        assert word in page, word

    assert (tmp_path / "a" / "logistic.png").read_bytes().startswith(b"\x89PNG")
    cells = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a" / CELLS).iterdir()}
    again = run_audit(small(CODECS + ",qsgd:bits=4"), tmp_path / "a")
    assert [row for row in again["rows"] if row["codec"] != "qsgd:bits=4"] == results["rows"]
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "a" / CELLS).iterdir()}
    assert cells.items() <= after.items()
    with pytest.raises(RunError, match="other settings"):
        run_audit(small(CODECS, "audit.seed=5"), tmp_path / "a")


@pytest.mark.slow
def test_several_processes_find_the_same(tmp_path: Path) -> None:
    codecs = "mpdd:m=50"
    alone, together = run_audit(small(codecs), tmp_path / "a"), run_audit(small(codecs), tmp_path / "b", jobs=2)
    for one, other in zip(alone["rows"], together["rows"], strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}


def test_an_audit_from_before_a_key_was_there_goes_on(tmp_path: Path) -> None:
    run_audit(small("mpdd:m=50"), tmp_path / "a")
    path = tmp_path / "a" / "config.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    del document["config"]["downlink"], document["audit"]["optimiser"]
    path.write_text(json.dumps(document), encoding="utf-8")
    run_audit(small("mpdd:m=50"), tmp_path / "a")


@pytest.mark.parametrize(
    ("changes", "codecs", "word"),
    [
        (["audit.attacks=['magic']"], CODECS, "'magic' is unknown; use some of dlg"),
        (["audit.images=0"], CODECS, "audit.images = 0"),
        (["audit.speed=3"], CODECS, "audit.speed"),
        ([], "mpdd:m=0", "m = 0"),
        ([], "nothing:m=1", "unknown"),
        (["codec.keys=shared"], "decomfl:m=5", "sends losses"),
    ],
)
def test_a_bad_config_is_refused_with_its_reason(changes: list[str], codecs: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word.replace("'", ".")):
        small(codecs, *changes)


def test_without_codecs_the_runs_own_is_attacked() -> None:
    audit = load_audit("demo", [])
    assert audit.codec_texts()[0] == "fedsgd"
    assert audit.codec(audit.codec_texts()[1]) == audit.config.codec.build()


def test_a_folder_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(RunError, match="is not an audit"):
        run_audit(small(), tmp_path)
    with pytest.raises(ConfigError, match="more than the"):
        run_audit(small(CODECS, "audit.images=1000", "audit.batch=64"), tmp_path / "b")
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("text", ["[" * 100_000, "null", "{", "{}"])
def test_a_damaged_config_of_an_audit_is_an_error_of_ours(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(RunError, match=r"config\.json is damaged: .*choose another --out"):
        run_audit(small("mpdd:m=50"), tmp_path / "a")


def test_an_audit_that_is_no_table_is_an_error_of_ours() -> None:
    with pytest.raises(ConfigError, match="expected a table"):
        load_audit("demo", ["audit=3"])
