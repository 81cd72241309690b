import json
import re
from html import unescape
from pathlib import Path

import pytest

from fedmpdd.errors import InputError, RunError
from fedmpdd.pages.builder import check_page, figure, render, write_page

NASTY = "<script>alert('1')</script>&\""


def page_with(*figures: object) -> str:
    template = "fedmpdd.pages:figures.html.jinja"
    return render(template, title=NASTY, kicker="made up", lead=NASTY, shown=figures, data={"tasks": [], "x": NASTY})


def test_figures_and_data_stand_in_the_page_and_nothing_in_them_is_markup() -> None:
    trace = {"type": "scatter", "name": NASTY, "colour": 0, "x": [1], "y": [2]}
    page = page_with(figure("a", [trace], levels=[{"y": 1, "text": NASTY}]), figure("b", []))
    assert page.count("* plotly.js v") == 1
    assert "<script>alert" not in page
    first, second = (json.loads(unescape(text)) for text in re.findall("data-figure='(.*?)'", page))
    assert (first["title"], first["traces"], second["title"]) == ("a", [trace], "b")
    assert first["levels"] == [{"y": 1, "text": NASTY}]
    data = re.search(r'id="data">(.*?)</script>', page)
    assert data is not None
    assert json.loads(data[1])["x"] == NASTY


def test_a_page_is_written_whole_or_refused(tmp_path: Path) -> None:
    write_page(tmp_path / "page.html", "text")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == "text"
    with pytest.raises(RunError, match=r"--plot .* cannot be written"):
        write_page(tmp_path / "missing" / "page.html", "text", "--plot")


def test_what_would_stop_a_page_is_said_before_it_is_made(tmp_path: Path) -> None:
    check_page(tmp_path / "page.html")
    with pytest.raises(InputError, match="is a folder"):
        check_page(tmp_path)
    with pytest.raises(InputError, match=r"--plot .*its folder does not exist"):
        check_page(tmp_path / "missing" / "page.html", "--plot")
