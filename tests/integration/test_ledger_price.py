"""`fineweb-mask price` in whole runs: on a folder, and on a workspace at a URL."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.commands._common import WRONG_USAGE
from fineweb_mask.tasks.storage.atomic import tree_files

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def call(server):
    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})

    return run


@pytest.fixture
def candidate(tmp_path):
    """1,000 pages of the sample, of which the workspace has read the first 100."""
    path = tmp_path / "new" / "pages.parquet"
    path.parent.mkdir()
    [source, *_] = sorted((ROOT / "data_samples" / "corpus").glob("*.parquet"))
    pq.write_table(pq.read_table(source).slice(400, 1_000), path)
    return path


def checked(done):
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["documents"], found["sample"]) == (1_000, 200)
    value, low, high = found["estimates"]["equal"]
    assert low <= 0.1 <= high
    assert 0.03 < value < 0.2
    value, low, high = found["estimates"]["kept"]
    assert 0 <= low <= value <= high < 0.6
    assert value > 0.05
    assert found["estimates"]["seconds"][0] > 0
    return found


def test_a_candidate_is_priced_and_the_corpus_stays_as_it_was(call, workspace, candidate):
    folders = ("documents", "scores", "embeddings", "duplicates", "masks", "fitted", "dataset")
    before = {path: path.stat().st_mtime_ns for folder in folders for path in tree_files(workspace / folder)}
    found = checked(call("price", workspace, candidate, "--sample", 200, "--json"))
    assert found["page"] == str(workspace / "price" / "index.html")
    assert found["is_own_rate"]
    after = {path: path.stat().st_mtime_ns for folder in folders for path in tree_files(workspace / folder)}
    assert after == before
    assert not [path for path in (workspace / "cache").rglob("*") if "partial" in path.name]
    for wrong, message in (
        (["gone.parquet"], "does not exist"),
        ([candidate, "--sample", 3], "--sample must be at least 200"),
    ):
        done = call("price", workspace, *wrong)
        assert done.exit_code == WRONG_USAGE
        assert message in done.stderr
    for path in (workspace / "scores").iterdir():
        path.unlink()
    done = call("price", workspace, candidate)
    assert done.exit_code == WRONG_USAGE
    assert "run its recipe first" in done.stderr


def test_a_workspace_at_a_url_prices_files_at_a_url(call, bucket, run_sample, candidate):
    run_sample(f"{bucket.url}/ws")
    bucket.write("new/pages.parquet", candidate.read_bytes())
    before = set(bucket.names("ws/"))
    found = checked(call("price", f"{bucket.url}/ws", f"{bucket.url}/new", "--sample", 200, "--json"))
    assert found["page"] == f"{bucket.url}/ws/price/index.html"
    added = {name for name in set(bucket.names("ws/")) - before if not name.startswith(("ws/runs/", "ws/index/"))}
    assert all(name.startswith("ws/price/") for name in added), added
