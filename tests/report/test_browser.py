"""The page in a real browser: what is drawn, what the buttons do, and that nothing is asked of a network."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedmpdd.report import Goals, collect, write_report
from tests.report.fixtures import ONE_BIT, make_audit, make_run, make_runs

pytestmark = pytest.mark.slow  # a browser of its own

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
LINES = (
    "[...document.querySelectorAll('.plot[data-task]')]"
    ".map(p => p.querySelectorAll('.scatterlayer path.js-line').length)"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (make chromium)")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    make_runs(folder / "runs")
    make_run(folder / "runs" / "b-3", {2: 0.1, 3: 0.2}, codec=ONE_BIT, seed=3, done=3, uplink=10, payload=8)
    make_run(folder / "runs" / "c-1", {2: 0.3, 6: 0.4}, codec={"name": "mpdd", "m": 5}, uplink=30, payload=25)
    make_audit(folder / "audit")
    path = folder / "report.html"
    write_report(path, collect([folder / "runs", folder / "audit"]), Goals((0.7,), (50,)))
    return path.as_uri()


class Visit:
    """An open page, with everything it complained about or asked for."""

    def __init__(self, browser: Any, address: str, **settings: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        self.context.set_offline(True)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(address)
        self.page.wait_for_selector(".plot .scatterlayer path.js-line")

    def lines(self) -> list[int]:
        counts: list[int] = self.page.evaluate(LINES)
        return counts

    def plot(self, expression: str) -> Any:
        """Evaluate an expression of `p`, the first plot."""
        return self.page.evaluate(f"(() => {{ const p = document.querySelector('.plot'); return {expression}; }})()")


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Visit]:
    visit = Visit(browser, address, color_scheme="light")
    yield visit
    visit.context.close()
    assert visit.complaints == []
    assert [url for url in visit.requests if not url.startswith(("data:", "blob:"))] == [address]


def test_curves_are_drawn_and_lines_can_be_switched_off(visit: Visit) -> None:
    assert visit.page.title() == "logistic on mnist-5k, and what an attacker gets"
    # Two groups with a band of two edges and a mean, an unfinished seed, and a group of one run.
    assert visit.lines() == [8, 8, 8, 8]
    assert visit.plot("p.querySelectorAll('path.js-fill').length") == 2
    button = visit.page.locator(".legend button").first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert visit.lines() == [5, 5, 5, 5]
    button.click()
    assert visit.lines() == [8, 8, 8, 8]


def test_single_seeds_and_payload_can_be_chosen(visit: Visit) -> None:
    visit.page.get_by_role("button", name="single seeds").click()
    assert visit.lines() == [6, 6, 6, 6]
    names = visit.plot("p.data.map(trace => trace.name)")
    assert "fedsgd, seed 2" in names
    assert any(name.endswith("seed 3, unfinished") for name in names)
    visit.page.get_by_role("button", name="mean ± sd").click()
    frames = visit.page.evaluate("document.querySelectorAll('.plot')[1].data.at(-1).x")
    visit.page.get_by_role("button", name="payload", exact=True).click()
    payload = visit.page.evaluate("document.querySelectorAll('.plot')[1].data.at(-1).x")
    assert (frames, payload) == ([60, 180], [50, 150])
    assert visit.page.evaluate("document.querySelectorAll('.plot')[1].layout.xaxis.type") == "log"


def test_dark_and_light(visit: Visit, browser: Any, address: str) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    before, colours = visit.page.evaluate(paper), visit.plot("p.data.map(trace => trace.line.color)")
    visit.page.locator("#theme").click()
    assert visit.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert visit.page.evaluate(paper) != before
    assert visit.plot("p.data.map(trace => trace.line.color)") != colours
    visit.page.emulate_media(color_scheme="dark")
    visit.page.locator("#theme").click()
    assert visit.page.evaluate(paper) == before  # a choice outweighs the system
    follower = Visit(browser, address, color_scheme="dark")
    assert follower.page.evaluate("document.documentElement.dataset.theme") == "dark"
    follower.page.emulate_media(color_scheme="light")
    follower.page.wait_for_selector("html[data-theme=light]")
    follower.context.close()


def test_hover_and_zoom(visit: Visit) -> None:
    layer = visit.page.locator(".plot").first.locator(".nsewdrag")
    layer.scroll_into_view_if_needed()
    area = layer.bounding_box()
    x, y = visit.plot("(a => [a.xaxis.d2p(6), a.yaxis.d2p(0.75)])(p._fullLayout)")
    visit.page.mouse.move(area["x"] + x - 30, area["y"] + y)
    visit.page.mouse.move(area["x"] + x - 2, area["y"] + y)
    visit.page.wait_for_selector(".hoverlayer .hovertext")
    assert "75.0% ± 7.1%" in visit.page.locator(".hoverlayer .hovertext").first.text_content()
    whole = visit.plot("p._fullLayout.xaxis.range")
    visit.page.mouse.move(area["x"] + 60, area["y"] + 40)
    visit.page.mouse.down()
    visit.page.mouse.move(area["x"] + 200, area["y"] + 160, steps=4)
    visit.page.mouse.up()
    visit.page.wait_for_timeout(500)  # the zoom is animated
    zoomed = visit.plot("p._fullLayout.xaxis.range")
    assert whole[0] < zoomed[0] < zoomed[1] < whole[1]
    visit.page.locator("#theme").click()
    assert visit.plot("p._fullLayout.xaxis.range") == zoomed
    visit.page.locator(".plot").first.locator(".nsewdrag").dblclick()
    visit.page.wait_for_timeout(500)
    assert visit.plot("p._fullLayout.xaxis.range") == whole


def test_no_button_uploads_the_plot(visit: Visit) -> None:
    titles = visit.plot("[...p.querySelectorAll('.modebar-btn')].map(button => button.dataset.title)")
    assert titles == ["Zoom", "Pan", "Zoom in", "Zoom out", "Reset axes"]


def test_a_plot_is_downloaded_as_svg_with_its_legend(visit: Visit, tmp_path: Path) -> None:
    visit.page.locator("#theme").click()
    with visit.page.expect_download() as download:
        visit.page.locator("button.svg").first.click()
    download.value.save_as(tmp_path / "plot.svg")
    assert download.value.suggested_filename == "test-accuracy-against-rounds.svg"
    text = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert text.startswith("<svg")
    assert "mpdd:m=5" in text


def test_reconstructions_are_shown(visit: Visit) -> None:
    assert visit.page.locator(".image").count() == 2 * 4
    size = visit.page.locator(".image").first.bounding_box()
    assert size["width"] > 20
    assert size["width"] / size["height"] == pytest.approx(6 / 5, rel=0.02)


@pytest.mark.parametrize("width", [320, 390])
def test_on_a_phone_nothing_overflows_sideways(browser: Any, address: str, width: int) -> None:
    phone = Visit(browser, address, viewport={"width": width, "height": 800}, is_mobile=True, has_touch=True)
    assert phone.page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    widths = phone.page.evaluate("[...document.querySelectorAll('.plot svg.main-svg')].map(p => p.clientWidth)")
    assert widths
    assert all(200 < each <= width for each in widths)
    assert phone.plot("p._fullLayout.dragmode") is False  # a finger on a plot scrolls the page
    assert phone.complaints == []
    phone.context.close()
