"""Summaries of runs: paths as the user knows them, and the order of the JSON fields."""

import json

import pytest

from fineweb_mask.flows.summary import PageSummary, StageSummary
from fineweb_mask.tasks.workspace.workspace import Workspace

FIELDS = ["status", "workspace", "page", "metrics", "documents", "quarantined", "stages"]


@pytest.mark.parametrize("is_remote", [False, True])
def test_paths_are_those_that_the_user_knows(is_remote, bucket, tmp_path):
    root = f"{bucket.url}/ws" if is_remote else str(tmp_path)
    workspace = Workspace(root)
    folder = workspace.root / "sweep"
    summary = PageSummary.of(
        workspace,
        {"a": "why"},
        [StageSummary(stage="sweep")],
        page=folder / "index.html",
        metrics=folder / "metrics.json",
        documents=1,
    )
    found = json.loads(summary.model_dump_json())
    assert list(found) == FIELDS
    assert found["status"] == "quarantined"
    assert found["quarantined"] == [{"shard": "a", "reason": "why"}]
    assert (found["workspace"], found["page"]) == (root, f"{root}/sweep/index.html")
    assert found["metrics"] == f"{root}/sweep/metrics.json"


def test_a_run_without_quarantined_shards_is_done(tmp_path):
    assert PageSummary.of(Workspace(tmp_path), {}, [], page="p", metrics="m", documents=0).status == "done"
