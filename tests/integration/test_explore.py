"""The map of a workspace: what is on it, opened in a real browser, without the network."""

import io
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, expect

from fineweb_mask.flows.commands.explore import MOST
from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.status.inspection import inspect_workspace
from fineweb_mask.models.analysis.vectors import unit_rows
from fineweb_mask.models.settings.selection import NEAR_DUPLICATE
from fineweb_mask.tasks.explore import KEPT, ExploreJob, explore
from fineweb_mask.tasks.reporting.samples import eligible_documents, vectors_at

pytestmark = pytest.mark.long  # a server, a worker or a browser, or whole runs, some of which are killed

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / ".screenshots"

needs_page = pytest.mark.skipif(find_spec("embedding_atlas") is None, reason="embedding-atlas is not installed")


@pytest.fixture(scope="module")
def prepared(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[ExploreJob, list]:
    workspace = Path(shutil.copytree(finished, tmp_path_factory.mktemp("explore") / "workspace"))
    shards = shard_files(inspect_workspace(workspace))
    job = ExploreJob(root=str(workspace), shards=shards, most=MOST)
    assert not explore(job).cached
    return job, shards


def test_every_document_is_on_the_map_with_what_is_known_of_it(prepared):
    job, shards = prepared
    table = pq.read_table(job.path)
    eligible = [pq.read_table(job.workspace.resolve(shard.masks)) for shard in shards]
    assert table.num_rows == sum(len(masks["block"].drop_null()) for masks in eligible)
    kept = sum(masks["selected"].to_pylist().count(True) for masks in eligible)
    assert table["kept"].to_pylist().count(KEPT) == kept == 473
    assert {"id", "dump", "url", "quality", "fasttext", "n_chars", "inclusion"} <= set(table.column_names)
    assert np.isfinite(np.column_stack([table["x"], table["y"]])).all()
    assert all(table["topic"].to_pylist())
    assert max(map(len, table["text"].to_pylist())) == 2_000


def test_neighbours_are_the_nearest_and_near_duplicates_are_counted(prepared):
    job, shards = prepared
    table = pq.read_table(job.path)
    places, _ = eligible_documents(job.workspace, shards, range(len(shards)))
    unit = unit_rows(vectors_at(job.workspace, shards, places))
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -2)
    np.testing.assert_allclose(table["nearest_cosine"].to_numpy(), cosines.max(axis=1).clip(0), atol=1e-5)
    clear = np.abs(cosines - NEAR_DUPLICATE).min(axis=1) > 1e-5
    counted = (cosines >= NEAR_DUPLICATE).sum(axis=1)
    few = clear & (counted < 60)
    assert (table["near_duplicates"].to_numpy()[few] == counted[few]).all()
    first = table["neighbours"].combine_chunks()[7].as_py()
    assert len(first["ids"]) == 10
    np.testing.assert_allclose(1 - cosines[7][first["ids"]], first["distances"], atol=1e-5)


def test_the_map_is_prepared_once_and_again_for_other_documents(prepared):
    job, _ = prepared
    assert explore(job).cached
    fewer = job.model_copy(update={"most": 300})
    assert fewer.current() is None
    assert explore(fewer).rows == 300
    explore(job)


class Served:
    """`fineweb-mask explore` on a workspace."""

    def __init__(self, workspace: Path) -> None:
        command = ["-m", "fineweb_mask.flows.cli", "explore", str(workspace), "--no-open"]
        self.process = subprocess.Popen(
            [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line.split()[1]
        assert "documents; Ctrl-C ends it" in line


@pytest.fixture(scope="module")
def served(prepared) -> Iterator[Served]:
    job, _ = prepared
    found = Served(Path(job.root))
    yield found
    found.process.kill()
    found.process.wait()
    assert found.process.stdout is not None
    found.process.stdout.close()


@needs_page
def test_the_map_opens_in_a_browser_and_asks_nobody_else(served: Served, browser: Browser):
    page = browser.new_page(viewport={"width": 1500, "height": 950})
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(served.url)
    expect(page.get_by_text("1,892 points").first).to_be_visible(timeout=60_000)
    expect(page.get_by_text("left out").first).to_be_visible()
    expect(page.get_by_text("Topic (words of its cluster)")).to_be_visible()
    canvas = page.locator("canvas").first
    expect(canvas).to_be_visible()
    page.wait_for_timeout(3_000)
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / "explore.png")
    page.locator('button[title="kept"]').first.click()
    expect(page.get_by_text("/ 1,892 points").locator("..")).to_contain_text("473")
    page.locator('button[title="Export Selection"]').first.click()
    page.locator("select", has=page.get_by_text("JSONL", exact=True)).last.select_option(label="JSONL")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export Selection").last.click()
    chosen = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert len(chosen) == 473
    assert {document["kept"] for document in chosen} == {KEPT}
    page.close()
    assert not [url for url in asked if not url.startswith((served.url, "data:", "blob:"))]


@needs_page
def test_it_answers_with_files_only_and_only_below_its_own_address(served: Served):
    table = httpx.get(f"{served.url}data/dataset.parquet")
    assert pq.read_table(io.BytesIO(table.content)).num_rows == 1892
    assert "access-control-allow-origin" not in table.headers
    assert httpx.get(f"{served.url}data/dataset.parquet", headers={"Host": "evil.example"}).status_code == 400
    port = int(served.url.split("/")[2].rpartition(":")[2])
    for path in ("", "data/dataset.parquet", "data/metadata.json", "wrong/data/dataset.parquet"):  # without the token
        assert httpx.get(f"http://127.0.0.1:{port}/{path}").status_code == 404
    query = {"type": "exec", "sql": "DROP TABLE dataset"}
    for path in ("data/query", "data/selection", "data/cache/x", "data/dataset.parquet"):
        assert httpx.post(f"{served.url}{path}", json=query).status_code == 405
    assert httpx.get(f"{served.url}data/query", params={"query": json.dumps(query)}).status_code == 404
    for path in ("%2e%2e/manifest.json", "assets/%2e%2e/%2e%2e/%2e%2e/__init__.py", "data/manifest.json"):
        assert httpx.get(f"{served.url}{path}").status_code == 404


@needs_page
def test_ctrl_c_ends_it(served: Served):
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(timeout=20) == 0
