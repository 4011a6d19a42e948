"""Names of runs."""

import re
from types import SimpleNamespace

import pytest

from fineweb_mask.flows.pipeline import start


@pytest.mark.parametrize(("overrides", "workspace"), [(None, "workspaces/a"), ({"workspace": "b"}, "b")])
def test_a_run_is_named_after_its_flow_its_workspace_and_its_time(monkeypatch, overrides, workspace):
    parameters = {"settings": SimpleNamespace(workspace="workspaces/a"), "overrides": overrides}
    context = SimpleNamespace(get=lambda: SimpleNamespace(parameters=parameters))
    monkeypatch.setattr(start, "FlowRunContext", context)
    assert re.fullmatch(rf"curate {workspace} \d\d \w+ \d\d:\d\d", start.named("curate")())
