from pathlib import Path

import pytest

from fedmpdd.errors import RunError
from fedmpdd.report.collect import collect
from fedmpdd.report.gallery import Gallery, Tile, gallery_of
from tests.report.made_up import grey_png, make_audit


def gallery(folder: Path) -> Gallery | None:
    (audit,) = collect([folder]).audits
    assert audit.results is not None
    return gallery_of(audit, "logistic", audit.results["rows"])


def test_a_picture_is_cut_into_lines_and_tiles(tmp_path: Path) -> None:
    found = gallery(make_audit(tmp_path / "a"))
    assert found is not None
    assert (found.columns, found.shape) == (2, (6, 5))
    assert [(line.codec, line.attack) for line in found.lines] == [
        ("the private images", ""), ("fedsgd", "dlg"), ("mpdd:m=4", "dlg"), ("mpdd:m=4", "adaptive"),
    ]  # fmt: skip
    assert found.lines[0].tiles == [Tile(0.0, 0.0, None), Tile(100.0, 0.0, None)]
    assert found.lines[3].tiles == [Tile(0.0, 100.0, 0.6), Tile(100.0, 100.0, 0.6)]
    assert found.address.startswith("data:image/png;base64,iVBOR")


def test_without_a_picture_there_is_no_gallery(tmp_path: Path) -> None:
    folder = make_audit(tmp_path / "a")
    (folder / "logistic.png").unlink()
    assert gallery(folder) is None


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
        gallery(folder)
