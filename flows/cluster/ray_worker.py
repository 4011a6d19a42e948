"""Run jobs in a process of a Ray cluster: jobs and results cross machines as JSON, and no call goes to Prefect."""

import os
import pkgutil
import socket
from contextlib import ExitStack
from functools import cache
from itertools import count
from pathlib import Path
from typing import NamedTuple

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.storage.mirror import default_scratch
from fineweb_mask.tasks.workspace.job import StageJob
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import LockedError, Workspace

_held = ExitStack()  # locks that are held until this process ends


class Room(NamedTuple):
    """The room that all processes of a node have for files of a workspace at a URL."""

    scratch: str | None = None  # folder
    scratch_bytes: int | None = None
    processes: int = 1  # that share it


def as_text(job: StageJob) -> tuple[str, str]:
    """Return what `work_on` takes of a job."""
    return f"{type(job).__module__}:{type(job).__qualname__}", job.model_dump_json()


def work_on(job_type: str, job: str, room: Room) -> str:
    """Run one job.

    Parameters
    ----------
    job_type
        Where its class is defined: module and name, with a colon between them.
    job
        The job as JSON.
    room
        For the files that it reads and writes.

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
        _open_workspace(parsed.root, room)
        file: str = parsed.task(parsed).model_dump_json()
    except Exception as error:
        error.add_note(f"on node {_node()}")
        raise
    return file


def _node() -> str:
    import ray

    return f"{socket.gethostname()} ({ray.util.get_node_ip_address()})"  # type: ignore[no-untyped-call]


@cache
def _open_workspace(root: str, room: Room) -> Workspace:
    """Open a workspace for the life of this process, which keeps the files of one at a URL in a folder of its own."""
    if "://" not in root:
        workspace = Workspace(root)
        if not workspace.exists(LastRun.path(workspace)):
            raise WorkspaceError(
                f"node {socket.gethostname()} does not see the workspace {root}: put it at a URL, such as "
                "s3://bucket/name, or into a folder that all nodes share"
            )
        return workspace
    limit = None if room.scratch_bytes is None else room.scratch_bytes // room.processes
    for number in count():  # the folder of an ended process is taken over, with the files in it
        workspace = Workspace(root, Path(room.scratch or default_scratch()) / f"process-{number}", limit)
        try:
            _held.enter_context(workspace.in_use())
        except LockedError:
            continue
        return workspace
    raise AssertionError


class GpuWorker:
    """Runs one job after the other in a process that holds a GPU, whose models stay loaded."""

    def work_on(self, job_type: str, job: str, room: Room) -> str:
        """Run one job; see `work_on`."""
        return work_on(job_type, job, room)

    def process(self) -> int:
        """Return the process's id, once it runs."""
        return os.getpid()
