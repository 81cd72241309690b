import re
from pathlib import Path

import pytest

from fedmpdd.errors import RunError
from fedmpdd.pages import builder
from fedmpdd.pages.audits import IMAGE_FOLDER, Section, context_of, display_name, read_audit, sections_of
from tests.report.fixtures import audit_row, grey_png, make_audit


def section(folder: Path) -> Section:
    (only,) = sections_of(read_audit(folder))
    return only


def page_of(folder: Path) -> str:
    audits = [context_of(read_audit(folder))]
    return builder.render("fedmpdd.pages:audit.html.jinja", title="An audit", kicker="fedmpdd audit", audits=audits)


def test_a_picture_is_cut_into_lines_and_images(tmp_path: Path) -> None:
    folder = make_audit(tmp_path / "a")
    gallery = section(folder).gallery
    assert gallery is not None
    assert (gallery.columns, gallery.shape) == (2, (6, 5))
    assert gallery.address.startswith("data:image/png;base64,iVBOR")
    positions = re.findall(r"background-position: ([\d.]+)% ([\d.]+)%", page_of(folder))
    assert [float(x) for x, _ in positions] == [0, 100] * 4
    assert [float(y) for _, y in positions[::2]] == pytest.approx([0, 100 / 3, 200 / 3, 100], abs=1e-3)
    assert '<div class="name">mpdd:<wbr>m=4 · adaptive' in page_of(folder)


def test_without_a_picture_there_is_no_gallery(tmp_path: Path) -> None:
    folder = make_audit(tmp_path / "a")
    (folder / "logistic.png").unlink()
    assert section(folder).gallery is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not a picture", "this is no PNG"),
        (grey_png(12, 20)[:20], "damaged"),
        (grey_png(12, 21), "12 × 21, expected 2 images beside and 4 above each other; delete the file and repeat"),
    ],
)
def test_a_damaged_picture_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    folder = make_audit(tmp_path / "a")
    (folder / "logistic.png").write_bytes(data)
    with pytest.raises(RunError, match=message):
        section(folder)


def test_the_row_that_is_shown_is_one_with_the_verdict_of_the_codec(tmp_path: Path) -> None:
    rows = [audit_row("topk:k=4", "dlg", "inconclusive", 0.9), audit_row("topk:k=4", "adaptive", "partly", 0.6)]
    shown = section(make_audit(tmp_path / "a", rows))
    assert shown.strongest(shown.codecs[0])["attack"] == "adaptive"


def test_an_audit_of_before_linkage_counted_is_judged_with_it(tmp_path: Path) -> None:
    nothing = "nothing beyond the class mean"
    rows = [audit_row("mpdd:m=4", "dlg", nothing, 0.2, linkage=1.0), audit_row("mpdd:m=5", "dlg", nothing, 0.2)]
    folder = make_audit(tmp_path / "a", rows)
    shown = section(folder)
    assert [codec["verdict"] for codec in shown.codecs] == ["linked", nothing]
    assert (
        page_of(folder).count('badge middling">linked') == 3
    )  # of the codec, and of the attack in the picture and in the table
    assert shown.rows[0]["sentence"].startswith("mpdd:m=4: dlg recovers no image, but the update tells which")


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("mnist", "mnist"),
        ("mydata.py:load(size=3)", "mydata.py:load(size=3)"),
        ("object:Net", "Net"),
        ("object:Net#12", "Net"),
        ("object:Mine#2:m=3", "Mine:m=3"),
        (f"{IMAGE_FOLDER}('../photos', size=32)", "../photos"),
    ],
)
def test_what_people_call_it(named: str, shown: str) -> None:
    assert display_name(named) == shown


def test_curves_are_drawn_where_an_audit_kept_them(tmp_path: Path) -> None:
    rows = [audit_row("fedsgd", "dlg", "partly", 0.6, history=[[0, 0.1], [10, 0.6]])]
    bars, curves = section(make_audit(tmp_path / "a", rows)).figures
    assert (bars["traces"][0]["x"], bars["traces"][0]["y"]) == (["fedsgd"], [0.6])
    assert bars["levels"] == [{"y": 0.3, "text": "class mean"}]
    assert (curves["traces"][0]["x"], curves["traces"][0]["y"]) == ([0, 10], [0.1, 0.6])
