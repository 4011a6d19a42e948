"""The map of a workspace: what is on it, opened in a real browser, without the network."""

import io
import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from random import Random

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, expect
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.status.inspection import inspect_workspace
from fineweb_mask.models.analysis.vectors import unit_rows
from fineweb_mask.models.settings.selection import NEAR_DUPLICATE
from fineweb_mask.tasks.explore import KEPT, ExploreJob, OtherSelection, explore
from fineweb_mask.tasks.reporting.samples import DocumentRef, vectors_at
from fineweb_mask.tasks.workspace.workspace import Workspace

pytestmark = pytest.mark.long  # a server, a worker or a browser, or whole runs, some of which are killed

ROOT = Path(__file__).resolve().parents[2]
SCREENSHOTS = ROOT / ".screenshots"

needs_page = pytest.mark.skipif(find_spec("embedding_atlas") is None, reason="embedding-atlas is not installed")


@pytest.fixture(scope="module")
def prepared(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[ExploreJob, list]:
    workspace = Path(shutil.copytree(finished, tmp_path_factory.mktemp("explore") / "workspace"))
    shards = shard_files(inspect_workspace(workspace))
    other = OtherSelection(name="other", root=str(workspace), shards=shards[:1])
    job = ExploreJob(root=str(workspace), shards=shards, most=10_000, other=other)
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
    masks = [pq.read_table(job.workspace.resolve(shard.masks)) for shard in shards]
    documents = [
        DocumentRef(index, row)
        for index, mask in enumerate(masks)
        for row in np.flatnonzero(mask["block"].is_valid().to_numpy())
    ]
    unit = unit_rows(vectors_at(Workspace(job.root), shards, documents))
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


def test_two_selections_are_compared_by_their_ids(prepared):
    job, shards = prepared
    table = pq.read_table(job.path)
    ids = pq.read_table(job.workspace.resolve(shards[0].documents), columns=["id"])["id"].to_pylist()
    chosen = pq.read_table(job.workspace.resolve(shards[0].masks))["selected"].to_pylist()
    there = {name for name, kept in zip(ids, chosen, strict=True) if kept}
    rows = zip(table["id"].to_pylist(), table["kept"].to_pylist(), table["kept_by"].to_pylist(), strict=True)
    names = {(True, True): "both", (True, False): "this one only", (False, False): "neither"}
    assert all(by == names[kept == KEPT, name in there] for name, kept, by in rows)


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
        command = ["-m", "fineweb_mask.flows.cli", "explore", str(workspace), "--no-open", "--port", "5955"]
        self.errors = workspace.with_name("errors")
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.url = line.split()[1]
        assert "documents; Ctrl-C ends it" in line


@pytest.fixture(scope="module")
def served(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    workspace = Path(shutil.copytree(finished, tmp_path_factory.mktemp("served") / "workspace"))
    found = Served(workspace)
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
def test_it_answers_with_files_only_and_only_under_its_own_name(served: Served):
    table = httpx.get(f"{served.url}data/dataset.parquet")
    assert pq.read_table(io.BytesIO(table.content)).num_rows == 1892
    assert httpx.get(f"{served.url}data/dataset.parquet", headers={"Host": "evil.example"}).status_code == 400
    port = int(served.url.split("/")[2].rpartition(":")[2])
    for path in ("", "data/dataset.parquet", "data/metadata.json", "wrong/data/dataset.parquet"):  # without the token
        assert httpx.get(f"http://127.0.0.1:{port}/{path}").status_code == 404
    for asked in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
    ):
        assert httpx.get(f"{served.url}data/dataset.parquet", headers=asked).status_code == 403
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    opened = httpx.get(served.url, headers=link)
    assert (opened.status_code, opened.headers["referrer-policy"]) == (200, "no-referrer")
    query = {"type": "exec", "sql": "DROP TABLE dataset"}
    for path in ("data/query", "data/selection", "data/cache/x", "data/dataset.parquet"):
        assert httpx.post(f"{served.url}{path}", json=query).status_code == 405
    assert httpx.get(f"{served.url}data/query", params={"query": json.dumps(query)}).status_code == 404
    for path in ("%2e%2e/manifest.json", "assets/%2e%2e/%2e%2e/%2e%2e/__init__.py", "data/manifest.json"):
        assert httpx.get(f"{served.url}{path}").status_code == 404
    assert "access-control-allow-origin" not in table.headers


@needs_page
def test_the_link_of_a_document_leads_to_what_every_stage_decided_on_it(served: Served):
    table = pq.read_table(io.BytesIO(httpx.get(f"{served.url}data/dataset.parquet").content))
    shown = httpx.get(f"{served.url}data/metadata.json").json()["props"]["initialState"]["columnStyles"]
    assert shown["why"] == {"renderer": "url", "display": "full"}
    place = table["kept"].to_pylist().index("left out")
    answer = httpx.get(f"{served.url}{table['why'][place]}", timeout=60)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "  select  not selected: rank" in answer.text
    for path, code in (("why/999999", 404), ("why/-1", 404), ("why/x", 422)):
        assert httpx.get(f"{served.url}{path}").status_code == code
    assert httpx.get(f"{served.url}why/0", headers={"Origin": "https://evil.example"}).status_code == 403


def malformed(random: Random, path: str) -> bytes:
    """Return a request that no browser sends."""
    start = random.choice(["GET", "GET", "GET", "POST", "HEAD", "OPTIONS", "PUT", "\xff"])
    below = ["", "%00", "%ff%fe", "..%2f..%2f", "data/query?query={", "x" * 9_000, "data/metadata.json?[=%", "//", "\\"]
    headers = [
        "Range: bytes=9-1,-,x",
        "Range: bytes=" + "0-1," * 500,
        "Content-Length: -1",
        "Content-Length: 99999",
        "Transfer-Encoding: chunked",
        "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x",
        "Origin: \x00",
        "If-Modified-Since: never",
        "Cookie: " + "y" * 70_000,
        ": ",
    ]
    lines = [f"{start} {path}{random.choice(below)} HTTP/{random.choice(['1.1', '1.1', '1.1', '1.1', '9'])}"]
    lines += ["Host: 127.0.0.1", *random.sample(headers, random.randint(0, 2))]
    body = random.choice(["", "{", '{"sql": "DROP TABLE dataset", "type": "exec"}', "\x00" * 100])
    content = ("\r\n".join(lines) + "\r\n\r\n" + body).encode("latin-1")
    for _ in range(random.choice([0, 0, 0, 0, 1, 20])):
        place = random.randrange(len(content))
        content = content[:place] + random.randbytes(1) + content[place + 1 :]
    return content


@needs_page
def test_malformed_requests_end_neither_it_nor_its_silence(served: Served):
    address = served.url.split("/")
    host, _, port = address[2].rpartition(":")
    random, said = Random(0), served.errors.read_text()
    for _ in range(400):
        with socket.create_connection((host, int(port)), timeout=10) as sent:
            sent.settimeout(5)
            with suppress(OSError):  # it may close the connection before all is sent
                sent.sendall(malformed(random, random.choice(["/", f"/{address[3]}/"])))
                sent.shutdown(socket.SHUT_WR)
                answer = sent.recv(64)
                assert not answer or int(answer.split()[1]) < 500
    assert httpx.get(f"{served.url}data/metadata.json").status_code == 200
    assert served.errors.read_text() == said


@needs_page
def test_ctrl_c_ends_it(served: Served):
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(timeout=20) == 0


@needs_page
def test_it_is_written_as_a_folder(workspace: Path, tmp_path: Path):
    result = CliRunner().invoke(
        app, ["explore", str(workspace), "--documents", "200", "--export", str(tmp_path / "map")]
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "map" / "index.html").is_file()
    assert json.loads((tmp_path / "map" / "data" / "metadata.json").read_text())["database"]["type"] == "wasm"
    shown = json.loads((tmp_path / "map" / "data" / "metadata.json").read_text())["props"]["initialState"]
    assert shown["columnStyles"]["why"] == {"display": "hidden"}  # nothing would answer
    assert pq.read_table(tmp_path / "map" / "data" / "dataset.parquet").num_rows == 200
    again = CliRunner().invoke(
        app, ["explore", str(workspace), "--documents", "200", "--export", str(tmp_path / "map")]
    )
    assert again.exit_code == 2
    assert "holds something else than the command writes" in again.stderr
