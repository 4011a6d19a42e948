"""Name the runs of a flow as a person looks for them: what ran, in which workspace, and when."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from prefect.context import FlowRunContext


def named(flow: str) -> Callable[[], str]:
    """Return the function by which Prefect names a run of a flow, such as `curate workspaces/sample 23 Nov 18:50`."""

    def name() -> str:
        context = FlowRunContext.get()
        parameters: Mapping[str, Any] = context.parameters or {} if context else {}
        settings, overrides = parameters.get("settings"), parameters.get("overrides") or {}
        workspace = overrides.get("workspace") or getattr(settings, "workspace", "")
        return f"{flow} {workspace} {datetime.now().astimezone():%d %b %H:%M}"

    return name
