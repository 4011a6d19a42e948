"""Names of runs."""

import re
from types import SimpleNamespace

import pytest

from fineweb_mask.flows.pipeline import start
from fineweb_mask.flows.pipeline.start import named

SETTINGS = SimpleNamespace(workspace="workspaces/a")


@pytest.mark.parametrize(
    ("parameters", "workspace"),
    [
        ({"settings": SETTINGS, "overrides": None}, "workspaces/a"),
        ({"settings": SETTINGS, "overrides": {"workspace": "b"}}, "b"),
        ({"settings": SETTINGS}, "workspaces/a"),
    ],
)
def test_a_run_is_named_after_its_flow_its_workspace_and_its_time(monkeypatch, parameters, workspace):
    context = SimpleNamespace(get=lambda: SimpleNamespace(parameters=parameters))
    monkeypatch.setattr(start, "FlowRunContext", context)
    assert re.fullmatch(rf"curate {workspace} \d\d \w+ \d\d:\d\d", named("curate")())
