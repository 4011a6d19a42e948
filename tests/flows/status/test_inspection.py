"""What is looked at without running anything; finished runs are ended in tests/integration/test_pipeline.py."""

from pathlib import Path

import pytest

from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.status.inspection import StatusError, finished_run, open_workspace
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace

ROOT = Path(__file__).resolve().parents[3]


def test_a_run_with_something_to_do_is_not_finished_and_leaves_no_record(tmp_path):
    settings = load_recipe(ROOT / "deployments" / "recipes" / "sample.yaml", [], str(tmp_path / "ws"))
    assert finished_run(settings) is None
    assert not (tmp_path / "ws").exists()
    workspace = settings.workspace
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws" / ".fineweb-mask").touch()
    LastRun(settings=settings, folder=str(ROOT)).save(Workspace(workspace))
    assert finished_run(settings) is None
    assert not (tmp_path / "ws" / "runs").exists()
    assert open_workspace(workspace).is_started
    with pytest.raises(StatusError, match="is no workspace: no run was started there"):
        open_workspace(tmp_path)
