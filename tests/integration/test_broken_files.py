"""One folder of a hundred broken and odd files beside good ones: the run goes on, and its books agree."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from prefect.settings import PREFECT_API_URL

from tests.tasks.source.broken_files import BROKEN, EITHER, READ, REFUSED

ROOT = Path(__file__).resolve().parents[2]
COPIES = (".gz", ".zst")
"""The same rows as in files that are not compressed."""


@pytest.mark.long
def test_a_hundred_broken_files_cost_themselves_only(server: None, small_sample: tuple[str, ...], tmp_path: Path):
    """Those that may come out either way, such as files with a byte changed, are read one by one in another test."""
    chosen = [
        one
        for one in BROKEN
        if one.outcome != EITHER
        and (one.outcome == REFUSED or not one.name.endswith(COPIES) or "member" in one.name)
        and "too_large" not in (one.dropped or {})  # which no file is that is quick to make
        and "far-too-huge" not in one.name
    ][::3]  # each costs a task; all are read one by one in another test
    assert len(chosen) >= 100
    (tmp_path / "corpus").mkdir()
    for one in chosen:
        one.write(tmp_path / "corpus" / one.name)
    command = [sys.executable, "-m", "fineweb_mask.flows.cli", "run", "deployments/recipes/sample.yaml", "--json"]
    settings = [
        *small_sample,
        f"source.path={tmp_path / 'corpus'}",
        "ingest.min_chars=20",
    ]
    done = subprocess.run(
        [*command, "--workspace", str(tmp_path / "w"), *(part for one in settings for part in ("--set", one))],
        cwd=ROOT,
        env=os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr[-3_000:]
    summary = json.loads(done.stdout.splitlines()[-1])
    assert len(summary["quarantined"]) == sum(one.outcome == REFUSED for one in chosen)
    assert all(one["reason"].startswith("ingest: ") for one in summary["quarantined"])
    read = [one for one in chosen if one.outcome == READ]
    assert summary["documents_in"] == sum(one.rows or 0 for one in read)
    kept = summary["documents_kept"]
    assert summary["documents_in"] == kept + summary["not_selected"] + sum(summary["dropped"].values())
    assert kept == sum(pq.read_metadata(path).num_rows for path in (tmp_path / "w" / "dataset").rglob("*.parquet")) > 0
    for reason in ("invalid_utf8", "broken_row"):
        assert summary["dropped"][reason] >= sum((one.dropped or {}).get(reason, 0) for one in read)
