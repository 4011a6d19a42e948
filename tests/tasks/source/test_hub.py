"""Read a source with the real hub client from a local hub that fails, is killed and is restarted."""

import gzip
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.commands._common import WRONG_USAGE
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.dataset.verify import find_dataset, verify
from fineweb_mask.tasks.source.discovery import SourceError, pin_commit
from fineweb_mask.tasks.source.reader import ShardReader
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.remote import errors
from fineweb_mask.tasks.storage.remote.errors import RemoteError
from fineweb_mask.tasks.storage.remote.filesystem import RemoteFile
from tests.tasks.conftest import document, write_rows
from tests.tasks.hub_server import SIGNATURE, HubServer
from tests.tasks.source_files import discover

TOKEN = "hf_good"


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of Parquet and JSON lines, with files beside them that are no documents."""
    folder = tmp_path_factory.mktemp("raw")
    for shard, seeds in {"en/a": range(40), "en/b": range(40, 60), "fr/c": range(60, 90)}.items():
        write_rows(folder / f"{shard}.parquet", [document(seed) for seed in seeds])
    lines = "".join(json.dumps(document(seed)) + "\n" for seed in range(90, 150))
    (folder / "fr" / "d.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    (folder / "README.md").write_text("# A corpus")
    return folder


@pytest.fixture(scope="module")
def server(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubServer]:
    """A hub with the corpus in two branches of a repository, and in one that is private."""
    with HubServer(tmp_path_factory.mktemp("hub")) as server:
        for branch in ("you/web/main", "you/web/feature%2Fx", "me/secret/main"):
            for path in tree_files(raw):
                server.write(branch, f"data/{path.relative_to(raw)}", path.read_bytes())
        server.make_private("me/secret")
        yield server


@pytest.fixture
def hub(server: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> HubServer:
    """The hub, which the client in this process now asks, without a token; waits are short."""
    from huggingface_hub import HfFileSystem, constants
    from huggingface_hub.utils import _http

    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING_FACE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DO_NOT_TRACK", "1")
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)  # HF_ENDPOINT is read when the client is imported
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=lambda seconds: time.sleep(seconds / 50)))
    monkeypatch.setattr(errors, "LONGEST_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(errors, "PATIENCE_SECONDS", 20.0)
    HfFileSystem.clear_instance_cache()
    HfFileSystem._cache.clear()
    return server


def table_of(path: object) -> dict[str, pa.Table]:
    """Return what is read of a source, by the names of its files."""
    source = SourceSettings(path=str(path))
    return {shard.relative: rows_of(ShardReader(shard, source)) for shard in discover(source)}


def rows_of(reader: ShardReader) -> pa.Table:
    return pa.Table.from_batches([batch for batch, _ in reader.batches()])


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("hf://datasets/you/web/data/", "."),
        ("hf://datasets/you/web/data/**/[ab].parquet", "**/[ab].parquet"),
        ("hf://datasets/you/web/data/en/a.parquet", "en/a.parquet"),
        ("hf://datasets/you/web@main/data/fr", "fr"),
        ("hf://datasets/you/web@feature%2Fx/data", "."),
    ],
)
def test_files_are_found_and_read_as_in_a_folder(hub: HubServer, raw: Path, url: str, place: str) -> None:
    assert table_of(url) == table_of(raw / place) != {}


def test_a_run_reads_the_commit_that_it_began_with(hub: HubServer, raw: Path) -> None:
    for path in tree_files(raw / "en"):
        hub.write("you/moving/main", path.name, path.read_bytes())
    source = SourceSettings(path="hf://datasets/you/moving")
    shards = discover(source)
    began = ShardReader(shards[0], source)
    hub.write("you/moving/main", "a.parquet", (raw / "fr" / "c.parquet").read_bytes())
    hub.write("you/moving/main", "README.md", b"# Moved")
    assert rows_of(began) == rows_of(ShardReader(shards[0], source)) == table_of(raw / "en")["a.parquet"]
    again = discover(source)
    assert [shard.fingerprint for shard in again][1:] == [shard.fingerprint for shard in shards][1:]
    assert again[0].fingerprint != shards[0].fingerprint
    assert rows_of(ShardReader(again[0], source)) == table_of(raw / "fr")["c.parquet"]


def test_reading_a_shard_at_a_commit_requests_its_bytes_and_nothing_else(hub: HubServer) -> None:
    source = SourceSettings(path="hf://datasets/you/web/data")
    shards = discover(source)
    before = len(hub.requests)
    for shard in shards:
        rows_of(ShardReader(shard, source))
    asked = hub.requests[before:]  # of the interface, a stranger may ask 500 things in five minutes
    assert asked
    assert all(line.startswith(("GET /datasets/you/web/resolve/", "GET /cdn/you/web/")) for line in asked)


def test_the_client_s_cache_of_a_branch_is_bypassed(hub: HubServer) -> None:
    url = "hf://datasets/you/branch/x.bin"
    for content in (b"old", b"a new one"):
        hub.write("you/branch/main", "x.bin", content)
        with RemoteFile(url) as file:
            assert file.read() == content


def test_parts_of_a_file_are_requested(hub: HubServer) -> None:
    content = os.urandom(100_000)
    hub.write("you/parts/main", "x.parquet", content)
    with RemoteFile("hf://datasets/you/parts/x.parquet") as file:
        file.seek(-10, os.SEEK_END)
        assert file.read() == content[-10:]
        file.seek(500)
        assert file.read(1000) == content[500:1500]


@pytest.mark.long
def test_transient_failures_are_retried(hub, raw, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    here, before = table_of(raw), len(hub.requests)
    try:
        for every in (3, 4):  # of pairs of requests, the one and the other
            hub.fail(every)
            assert len({pin_commit("hf://datasets/me/secret") for _ in range(3)}) == 1
            assert table_of("hf://datasets/me/secret/data") == here
    finally:
        hub.fail(0)
    failed = [line for line in hub.requests[before:] if line.startswith("FAILED")]
    for kind in ("/api/datasets/me/secret", "/tree/", "/resolve/", "/cdn/"):
        assert any(kind in line for line in failed), kind
    assert "remote storage" in caplog.text
    assert TOKEN not in caplog.text
    assert SIGNATURE not in caplog.text


def test_reading_waits_for_a_hub_that_restarts(hub: HubServer, raw: Path) -> None:
    path = raw / "en" / "a.parquet"
    with RemoteFile(pin_commit("hf://datasets/you/web/data/en/a.parquet")) as file:
        first = file.read(1000)
        hub.kill()
        starting = threading.Timer(0.3, hub.start)
        starting.start()
        rest = file.read()
        starting.join()
    assert first + rest == path.read_bytes()


@pytest.mark.parametrize(
    ("url", "token", "message"),
    [
        ("hf://datasets/me/secret/data", None, r"access denied \(.*\): set HF_TOKEN \(of an account that may read"),
        ("hf://datasets/you/none", None, r"access denied \(.*\): set HF_TOKEN .* a misspelt name"),
        ("hf://datasets/you/web", "hf_wrong", r"access denied \(.*Invalid credentials.*\): set HF_TOKEN"),
        ("hf://datasets/you/none", TOKEN, r"does not exist \(.*\): check its spelling, and the repository's"),
        ("hf://datasets/you/web@none/data", None, r"does not exist \(.*Revision Not Found.*Invalid rev id: none\)"),
        ("hf://datasets/web", None, r"An address on the hub reads hf://datasets/owner/name/folder"),
        ("hf://datasets/you/web/none", None, r"^source\.path: 'hf://datasets/you/web/none' does not exist"),
    ],
)
def test_permanent_errors_are_raised_at_once(hub, monkeypatch, url, token, message):
    if token is not None:
        monkeypatch.setenv("HF_TOKEN", token)
    before = len(hub.requests)
    with pytest.raises((RemoteError, SourceError), match=message) as caught:
        discover(SourceSettings(path=url))
    assert url in str(caught.value)
    assert "hf_" not in str(caught.value)
    assert len(hub.requests) - before < 8


def test_wrong_client_settings_are_not_retried(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(errors, "PATIENCE_SECONDS", 3.0)
    started = time.monotonic()
    with pytest.raises(RemoteError, match="unset the `HF_HUB_OFFLINE`"):
        discover(SourceSettings(path="hf://datasets/you/web"))
    assert time.monotonic() - started < 2


@pytest.mark.long
def test_a_dataset_on_the_hub_is_verified_at_its_commit(hub: HubServer, built: Any) -> None:
    dataset = built.workspace.dataset
    for path in tree_files(dataset):
        hub.write("you/data/main", path.relative_to(dataset).as_posix(), path.read_bytes())
    found = find_dataset("hf://datasets/you/data")
    [target, *_] = sorted((dataset / "data").rglob("*.parquet"))
    hub.write("you/data/main", target.relative_to(dataset).as_posix(), target.read_bytes()[:-1])
    assert verify(found).status == "ok"
    found = find_dataset("hf://datasets/you/data")
    broken = verify(found)
    assert {problem.file for problem in broken.problems} == {target.relative_to(dataset).as_posix()}
    assert broken.dataset == pin_commit("hf://datasets/you/data")


def test_a_workspace_on_the_hub_is_refused_by_every_command(hub: HubServer) -> None:
    before = len(hub.requests)
    for name, *rest in (["status"], ["sql", "select 1"], ["push", "me/data"]):
        done = CliRunner().invoke(app, [name, "hf://datasets/you/web", *rest])
        assert (done.exit_code, len(hub.requests)) == (WRONG_USAGE, before)
        assert "hf:// can be a source only" in done.stderr
