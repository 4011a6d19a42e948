"""A run is recorded however it ended, and the recipe of the last run is read, also one of an earlier version."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fineweb_mask.models.runtime.stopping import clear_stop_request, request_stop
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.storage.remote import retries
from fineweb_mask.tasks.workspace.records.runs import LastRun, RunRecord
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.conftest import Bucket
from tests.s3 import Proxy

RECIPE = {"workspace": "w", "source": {"path": "p"}, "quality": {"scorers": [{"name": "a", "model": "m.bin"}]}}


@pytest.fixture
def record() -> Iterator[RunRecord]:
    """The record of a run that failed, and has asked its threads to stop."""
    request_stop()
    yield RunRecord(flow="curate", status="failed", select_ratio=0.1, lamb=0.5, solver="auto", recipe={}, version="1")
    clear_stop_request()


def test_the_record_of_a_failed_run_is_uploaded(record: RunRecord, bucket: Bucket) -> None:
    record.end(Workspace(f"{bucket.url}/ws"))
    [name] = bucket.names("ws/runs/")
    assert json.loads(bucket.read(name))["status"] == "failed"


def test_a_dead_store_is_not_waited_for(
    record: RunRecord, bucket: Bucket, proxy: Proxy, reach: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "BRIEF_SECONDS", 0.2)
    reach(proxy.url)
    workspace = Workspace(f"{bucket.url}/ws")
    proxy.kill()
    started = time.monotonic()
    with suppress(OSError):
        record.end(workspace)
    assert time.monotonic() - started < 20


def test_the_recipe_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    expected = LastRun(settings=PipelineSettings.model_validate(RECIPE), folder="f")
    content = json.loads(expected.model_dump_json())
    content["settings"]["quality"]["scorers"][0] |= {"max_chars": None, "standardise": True, "training": {"epochs": 12}}
    content["settings"]["selection"] |= {"blocks": "by_shard", "gist": {"distances": 8}, "directions": 128}
    content["settings"]["embedding"] |= {"chunk_documents": 8192}
    LastRun.path(Workspace(tmp_path)).write_text(json.dumps(content))
    assert LastRun.load(Workspace(tmp_path)) == expected
