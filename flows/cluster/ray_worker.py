"""Run jobs in a process of a Ray cluster: jobs and results cross machines as JSON, and no call goes to Prefect."""

import pkgutil
import socket
from functools import cache

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.workspace.job import StageJob
from fineweb_mask.tasks.workspace.workspace import Workspace


def as_text(job: StageJob) -> tuple[str, str]:
    """Return what `work_on` takes of a job."""
    return f"{type(job).__module__}:{type(job).__qualname__}", job.model_dump_json()


def work_on(job_type: str, job: str) -> str:
    """Run one job.

    Parameters
    ----------
    job_type
        Where its class is defined: module and name, with a colon between them.
    job
        The job as JSON.

    Returns
    -------
    str
        The reference to its output as JSON.

    Raises
    ------
    WorkspaceError
        If this node does not see the workspace.
    Exception
        Whatever the job raises.
    """
    try:
        parsed: StageJob = pkgutil.resolve_name(job_type).model_validate_json(job)
        _open_workspace(parsed.root)
        file: str = parsed.task(parsed).model_dump_json()
    except Exception as error:
        error.add_note(f"on node {socket.gethostname()}")
        raise
    return file


@cache
def _open_workspace(root: str) -> Workspace:
    """Open a workspace for the life of this process."""
    workspace = Workspace(root)
    if workspace.url is None and not workspace.is_started:
        raise WorkspaceError(
            f"node {socket.gethostname()} does not see the workspace {root}: put it at a URL, such as "
            "s3://bucket/name, or into a folder that all nodes share"
        )
    return workspace


class GpuWorker:
    """Runs one job after the other in a process that holds a GPU, whose models stay loaded."""

    def work_on(self, job_type: str, job: str) -> str:
        """Run one job; see `work_on`."""
        return work_on(job_type, job)
