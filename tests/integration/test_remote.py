"""The sample from a bucket into a bucket of a real S3 server that refuses, is gone for a while, is met afresh."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from prefect.settings import PREFECT_API_URL
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.status.inspection import inspect_workspace, status_of
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.conftest import Bucket
from tests.s3 import KEY_ID, SECRET, Proxy

ROOT = Path(__file__).resolve().parents[2]
KILLS = 4
STAGES = ("documents", "duplicates", "scores", "embeddings", "masks")


@pytest.fixture
def corpus(bucket: Bucket, sample_corpus: Path) -> str:
    """The URL of the sample corpus."""
    for path in (sample_corpus / "corpus").glob("*.parquet"):
        bucket.write(f"corpus/{path.name}", path.read_bytes())
    return f"{bucket.url}/corpus"


def gone_for_a_while(proxy: Proxy, bucket: Bucket, until: threading.Event) -> None:
    """Kill the server, as far as its clients can tell, when documents are being written, and start it again."""
    while not any(name.startswith("ws/scores/") for name in bucket.names()):
        if until.wait(0.05):
            return
    proxy.kill()
    time.sleep(2)
    proxy.start()


def ask(*arguments: str) -> str:
    """Return what a command prints."""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.strip()


def rows_of(workspace: Path) -> Iterator[tuple[str, bytes]]:
    """Yield what lies in the stages' files, footers aside: those say when the source was changed."""
    for stage in STAGES:
        for path in sorted((workspace / stage).glob("*.parquet")):
            yield (
                f"{stage}/{path.name.split('.')[0]}",
                pq.read_table(path).replace_schema_metadata().to_pydict().__repr__().encode(),
            )


def holding(folders: list[Path], marker: str) -> list[Path]:
    """Return the files that a text is in."""
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return [path for path in files if marker.encode() in path.read_bytes()]


@pytest.mark.long
def test_the_sample_goes_from_a_bucket_to_a_bucket_through_failures(
    bucket, corpus, proxy, reach, run_sample, finished, service, tmp_path, caplog
):
    reach(proxy.url)
    url = f"{bucket.url}/ws"
    overrides = (f"source.path={corpus}", "materialize.license=apache-2.0")
    proxy.failing, ended = 0.1, threading.Event()
    gone = threading.Thread(target=gone_for_a_while, args=(proxy, bucket, ended))
    gone.start()
    try:
        summary = run_sample(url, *overrides)
    finally:
        ended.set()
        gone.join()
    proxy.failing = 0.0
    assert summary.status == "done"
    assert summary.workspace == url
    assert summary.report == f"{url}/reports/index.html"
    assert proxy.failed > 10

    # As on this machine alone, byte by byte where no footer tells of the source.
    made = downloaded(bucket, "ws", tmp_path)
    here = {path.relative_to(made).as_posix(): path for path in tree_files(made)}
    assert dict(rows_of(made)) == dict(rows_of(finished))
    assert data_of(made) == data_of(finished) != []
    assert bucket.unfinished() == []

    # What jobs copied is gone; nothing unfinished is left, and nothing is only here but the times of jobs.
    workspace = Workspace(url)
    assert workspace.root.parent == tmp_path / "cache" / "fineweb-mask"
    assert [path for stage in STAGES for path in (workspace.root / stage).glob("*.parquet")] == []
    assert not [path for folder in (workspace.root, workspace.here) for path in folder.rglob("*.partial")]

    # No credential is in what was written, here or there, nor in the logs, nor in what Prefect keeps.
    assert LastRun.load(Workspace(url)).settings.workspace == url
    for marker in (KEY_ID, SECRET):
        assert holding([tmp_path, service.state, service.home], marker) == []
        assert marker not in caplog.text
        assert not any(marker.encode() in bucket.read(name) for name in bucket.names("ws/"))

    # A machine that has nothing finds all of it done, and copies no documents, scores or vectors to see that.
    reach(proxy.url, tmp_path / "fresh")
    proxy.sent.clear()
    again = run_sample(url, *overrides)
    files = {stage.stage: stage.files for stage in summary.stages}
    files["materialize"] = 1  # the parts of the dataset are not looked at again
    assert {stage.stage: (stage.files, stage.cached) for stage in again.stages} == {
        name: (count, count) for name, count in files.items()
    }
    fresh = Workspace(url).root
    assert fresh.is_relative_to(tmp_path / "fresh")
    assert not any(list((fresh / stage).glob("*.parquet")) for stage in STAGES)
    status = status_of(inspect_workspace(url))
    assert status.workspace == url
    assert all(stage.missing == stage.stale == 0 and stage.done for stage in status.stages)

    # It can be asked, verified and listed for the hub there as well.
    assert json.loads(ask("sql", url, "select count(*) n from selected", "--json")) == [{"n": summary.counts.selected}]
    assert json.loads(ask("verify", url, "--json"))["status"] == "ok"
    listed = json.loads(ask("push", url, "owner/name", "--dry-run", "--json"))
    assert set(listed["files"]) == {name.removeprefix("ws/dataset/") for name in bucket.names("ws/dataset/")}

    # What is deleted there is made again, and nothing else; so is what somebody overwrote.
    shard = "CC-MAIN-2024-10_00000"
    files = {name.split("/")[0]: name for name in here if name.split("/")[-1].startswith(f"{shard}.")}
    bucket.server.client.delete_object(Bucket=bucket.name, Key=f"ws/{files['scores']}")
    bucket.write(f"ws/{files['masks']}", b"overwritten")
    repaired = {stage.stage: stage.files - stage.cached for stage in run_sample(url, *overrides).stages}
    assert repaired == dict.fromkeys(repaired, 0) | {"score": 1, "select": 1}
    assert all(bucket.read(f"ws/{name}") == here[name].read_bytes() for name in files.values())


@pytest.mark.long
def test_this_machine_holds_no_more_than_the_jobs_of_a_moment_need(bucket, run_sample, sample_corpus, finished):
    """At most the models and what selecting, materialising and the report read, and never all of the workspace."""
    sizes = {path: path.stat().st_size for path in tree_files(finished)}
    folders = ("fitted", "documents", "scores", "embeddings", "masks", "dataset")
    limit = sum(size for path, size in sizes.items() if path.relative_to(finished).parts[0] in folders) + 2**16
    url, most, ended = f"{bucket.url}/narrow", [0], threading.Event()
    root = Workspace(url).root

    def watch() -> None:
        before: dict[Path, int] = {}
        while not ended.wait(0.02):
            with suppress(FileNotFoundError):  # deleted, or renamed
                held = {path: path.stat().st_size for path in tree_files(root) if not path.name.startswith(".")}
                if held == before:  # else one file may be counted with another that came in its place
                    most[0] = max(most[0], sum(held.values()))
                before = held

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        summary = run_sample(url, f"source.path={sample_corpus / 'corpus'}")
    finally:
        ended.set()
        watching.join()
    assert summary.status == "done"
    assert limit < sum(bucket.names("narrow/").values())
    assert 0 < most[0] <= limit


@pytest.mark.long
def test_killed_at_random_moments_and_continued_on_other_machines(
    bucket, corpus, reach, run_sample, small_sample, server, finished, tmp_path
):
    """Every run begins with an empty folder."""
    url, dice = f"{bucket.url}/ws", random.Random(11)
    command = [sys.executable, "-m", "fineweb_mask.flows.cli", "run", "deployments/recipes/sample.yaml"]
    command += ["--workspace", url]
    settings = (*small_sample, f"source.path={corpus}")
    command += [f"--set={setting}" for setting in settings]
    killed = 0
    for number in range(KILLS):
        environment = os.environ | {
            "XDG_CACHE_HOME": str(tmp_path / f"machine-{number}"),
            "PREFECT_API_URL": str(PREFECT_API_URL.value()),
        }
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as run:
            try:
                output, _ = run.communicate(timeout=dice.uniform(4, 10))
                assert run.returncode == 0, output
            except subprocess.TimeoutExpired:
                run.kill()
                killed += 1
    assert killed
    reach(bucket.server.url, tmp_path / "last")
    assert run_sample(url, f"source.path={corpus}").status == "done"
    made = downloaded(bucket, "ws", tmp_path)
    assert dict(rows_of(made)) == dict(rows_of(finished))
    assert data_of(made) == data_of(finished) != []


def downloaded(bucket: Bucket, folder: str, tmp_path: Path) -> Path:
    """Return a local copy of a folder of the bucket."""
    target = tmp_path / "downloaded"
    for name in bucket.names(f"{folder}/"):
        path = target / name.removeprefix(f"{folder}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.read(name))
    return target


def data_of(workspace: Path) -> list[tuple[str, bytes]]:
    """Return the dataset's files, by their names below the folder of their version."""
    files = sorted((workspace / "dataset").glob("data*/**/*.parquet"))
    return [("/".join(path.relative_to(workspace).parts[2:]), path.read_bytes()) for path in files]
