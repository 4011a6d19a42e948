"""The report and a comparison in a real browser: nothing is fetched, nothing fails, all is drawn, tables sort."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page

pytestmark = pytest.mark.long  # a server, a worker or a browser, or whole runs, some of which are killed

SCREENSHOTS = Path(__file__).resolve().parents[2] / ".screenshots"


class Opened(NamedTuple):
    """A page, what it asked for beyond itself, and what went wrong on it."""

    page: Page
    requests: list[str]
    errors: list[str]


@pytest.fixture
def opened(browser) -> Iterator[Callable[..., Opened]]:
    """Open a file of this machine with the network watched."""
    contexts = []

    def open_file(path: Path, **options: str) -> Opened:
        context = browser.new_context(viewport={"width": 1200, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        requests: list[str] = []
        errors: list[str] = []
        page.on("request", lambda request: None if request.url.startswith("data:") else requests.append(request.url))
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("dialog", lambda dialog: errors.append(dialog.message))
        page.goto(path.as_uri())
        return Opened(page, requests, errors)

    yield open_file
    for context in contexts:
        context.close()


def images(page: Page) -> list[int]:
    page.evaluate("Promise.all([...document.images].map(image => image.decode()))")
    return list(page.evaluate("[...document.images].map(image => image.naturalWidth)"))


PAGES = {"reports": "quality", "compare": "trade-off"}
"""By folder, the figure of the page."""


@pytest.fixture(params=PAGES)
def path(request, finished, contest) -> Path:
    """The report, or the page of a comparison."""
    return (finished if request.param == "reports" else contest.workspace) / request.param / "index.html"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_whole_without_a_network(opened, path, scheme):
    page, requests, errors = opened(path, color_scheme=scheme, offline=True)
    assert [plot.stem for plot in (path.parent / "plots").iterdir()] == [PAGES[path.parent.name]]
    assert images(page) == [990]
    assert page.locator("details table").count() == 1
    assert requests == [path.as_uri()]
    assert errors == []
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200
    alts = page.evaluate("[...document.images].map(image => image.alt)")
    assert all(len(alt) > 20 for alt in alts)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 18, 18)"}[scheme]
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{path.parent.name}-{scheme}.png", full_page=True)


def test_on_a_phone_nothing_of_a_page_is_cut(browser, path):
    context = browser.new_context(viewport={"width": 400, "height": 800})
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    cut = "[...document.querySelectorAll('.scroll, td, li, p, h1, h2')].filter(one => one.scrollWidth > innerWidth)"
    assert page.evaluate(f"{cut}.length") == 0
    wide = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth + 1)"
    assert page.evaluate(f"{wide}.map(one => one.ariaLabel)") == []
    context.close()


def column(page: Page, table: str, number: int) -> list[str]:
    return page.get_by_role("region", name=table).locator(f"tbody td:nth-child({number})").all_inner_texts()


def test_tables_sort_by_click_and_by_key(opened, finished):
    page, _, errors = opened(finished / "reports" / "index.html")
    headings = page.locator("header h2").all_inner_texts()
    assert headings == ["What was gained", "What was lost", "Why to doubt it"]
    region = page.get_by_role("region", name="Clusters")
    sizes = [float(text.rstrip("%")) for text in column(page, "Clusters", 2)]
    region.get_by_role("button", name="eligible").press("Enter")
    assert [float(text.rstrip("%")) for text in column(page, "Clusters", 2)] == sorted(sizes, reverse=True)
    assert region.locator("th[aria-sort=descending]").inner_text() == "eligible"
    region.get_by_role("button", name="eligible").press("Enter")
    assert [float(text.rstrip("%")) for text in column(page, "Clusters", 2)] == sorted(sizes)
    region.get_by_role("button", name="words").press("Space")
    names = column(page, "Clusters", 1)
    assert names == sorted(names)
    assert region.locator("th[aria-sort=ascending]").inner_text() == "words"
    assert region.locator("th[aria-sort=none]").count() == 3
    assert errors == []


def test_attacks_are_read_and_not_run(opened, hostile_run):
    path = hostile_run.workspace / "reports" / "index.html"
    page, requests, errors = opened(path)
    assert min(images(page)) > 500
    assert requests == [path.as_uri()]
    assert errors == []
    assert page.locator("main script, main a[href^=javascript], img[src=x], img[src^=http]").count() == 0
    words = page.locator("main").inner_text()
    for attack in ("<script>alert('x')</script>", "<img src=x onerror=alert(1)>", "␛[31mred␇␀", "{{ 7 * 7 }}"):
        assert attack in words
    assert "\u202e" not in words
    assert page.evaluate("document.documentElement.scrollWidth") <= 1200  # a word of 3,000 letters is broken
    page.screenshot(path=SCREENSHOTS / "report-hostile.png", full_page=True)


def test_all_columns_of_a_comparison_are_in_sight_and_sort(opened, contest):
    page, _, errors = opened(contest.workspace / "compare" / "index.html")
    first = page.get_by_role("region", name="All selections").locator("table")
    assert first.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
    names = [text.split(" ")[0] for text in first.locator("th button").all_inner_texts()]
    first.locator("th button").nth(names.index("mean")).click()
    cells = first.locator(f"tbody td:nth-child({names.index('mean') + 1})").all_inner_texts()
    assert [float(cell) for cell in cells] == sorted(map(float, cells), reverse=True)
    assert errors == []
