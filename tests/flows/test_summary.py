"""Summaries of runs: paths as the user knows them, and the order of the JSON fields."""

import json

import pytest

from fineweb_mask.flows.summary import PageSummary, StageSummary
from fineweb_mask.tasks.workspace.workspace import Workspace


@pytest.mark.parametrize("is_remote", [False, True])
def test_paths_are_those_that_the_user_knows(is_remote, bucket, tmp_path):
    root = f"{bucket.url}/ws" if is_remote else str(tmp_path)
    workspace = Workspace(root)
    stages, places = [StageSummary(stage="compare")], {"page": workspace.root / "compare/i.html", "metrics": "m"}
    found = json.loads(PageSummary.of(workspace, {"a": "why"}, stages, **places, documents=1).model_dump_json())
    assert list(found) == ["status", "workspace", "page", "metrics", "documents", "quarantined", "stages"]
    assert found["status"] == "quarantined"
    assert found["quarantined"] == [{"shard": "a", "reason": "why"}]
    assert (found["workspace"], found["page"]) == (root, f"{root}/compare/i.html")
    assert PageSummary.of(workspace, {}, stages, **places, documents=0).status == "done"
