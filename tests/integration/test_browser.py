"""The pages of the Prefect UI in a real browser. Screenshots are saved in `.screenshots/`."""

import io
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from matplotlib.image import imread
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.long  # a server, a worker or a browser, or whole runs, some of which are killed

SCREENSHOTS = Path(__file__).resolve().parents[2] / ".screenshots"
PLOTS = ("quality",)
INSIDE = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")
WAIT = 30_000  # milliseconds; a page on a busy machine


@pytest.fixture
def page(browser, service) -> Iterator[Page]:
    """An empty page that must not ask for anything outside this machine."""
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    page.set_default_timeout(WAIT)
    expect.set_options(timeout=WAIT)
    outside: list[str] = []
    page.on("request", lambda request: None if request.url.startswith(INSIDE) else outside.append(request.url))
    yield page
    page.close()
    assert not outside


def keep(page: Page, name: str) -> None:
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def share_of_green(png: bytes) -> float:
    """The share of pixels in the colour of completed tasks."""
    red, green, blue = (imread(io.BytesIO(png))[..., channel] for channel in range(3))
    return float(((green > 0.5) & (red < 0.4) & (blue < 0.5)).mean())


def test_flow_run_page_has_the_graph_the_artifacts_and_the_picture(page, service, sample_run):
    page.goto(f"{service.url}/runs/flow-run/{sample_run['id']}")
    expect(page.get_by_text("curate workspaces/sample").first).to_be_visible()
    graph = page.locator("canvas").first
    expect(graph).to_be_visible()
    deadline = time.monotonic() + WAIT / 1000
    while share_of_green(graph.screenshot()) < 0.005:
        assert time.monotonic() < deadline, "the graph has no completed tasks"

    page.get_by_text("Artifacts", exact=True).last.click()
    for name in ("progress-score", "funnel", "report"):
        expect(page.get_by_text(f"{name}-workspaces-sample", exact=True).first).to_be_visible()
    keep(page, "flow-run")

    page.get_by_text("report-workspaces-sample", exact=True).first.click()
    expect(page.get_by_text("Of the way from a random selection to the best possible").first).to_be_visible()
    expect(page.get_by_role("heading", name="Best left out", exact=True)).to_be_visible()
    expect(page.get_by_role("table").filter(has_text="effective rank")).to_be_visible()
    for name in PLOTS:
        picture = page.get_by_role("img", name=name, exact=True)
        expect(picture).to_be_visible()
        assert picture.evaluate("image => image.naturalWidth") > 500
    page.get_by_role("heading", name="Diversity", exact=True).scroll_into_view_if_needed()
    keep(page, "report")


def test_run_form_shows_the_fields_in_order_with_their_help(page, service):
    deployment = service.read("deployments/name/curate/sample")
    page.goto(f"{service.url}/deployments/deployment/{deployment['id']}/run")
    helps = (  # some stand among the settings that matter, too, and again in their section
        "Folder for the files of all stages, the dataset and the reports;",
        "Share of the documents (or of their tokens) to select.",
        "Minimum length of a text, in characters.",
    )
    for text in helps:
        expect(page.get_by_text(text).first).to_be_visible()
    text = page.locator("form").first.inner_text()
    sections = ["Workspace", "Source", "Ingest", "Quality", "Embedding", "Selection", "Materialize"]
    sections += ["Report", "Engine"]
    places = [re.search(rf"^{name}( \(Optional\))?$", text, re.MULTILINE) for name in sections]
    assert all(places), text
    assert [place.start() for place in places] == sorted(place.start() for place in places)
    keep(page, "run-form")


def test_hostile_names_are_shown_as_they_are(page, service, hostile_run):
    report = service.artifacts(hostile_run.flow_run)["report"]
    page.goto(f"{service.url}/artifacts/artifact/{report['id']}")
    expect(page.get_by_text(hostile_run.shard).first).to_be_visible()
    expect(page.get_by_text("␛[31mred␇␀").first).to_be_visible()  # a dump's name
    assert page.locator("img[src=x], a[href^=javascript], img[src^=http], main script").count() == 0
    keep(page, "hostile-report")
