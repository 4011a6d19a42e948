"""End a flow or a task that fails for a reason that a person can mend with that reason alone, without a traceback.

Prefect logs the traceback of what a flow raises. The message of the state `Failed` is one line of the log, and what the
Prefect UI shows; who asks for the result gets the error all the same, as if it had been raised. A flow whose workspace
had a damaged file begins again without it: what is whole is not built again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from prefect.states import Failed

from fineweb_mask.models.errors import WorkspaceError, message_of
from fineweb_mask.tasks.storage.atomic import remove_file
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.workspace import Workspace

P = ParamSpec("P")
R = TypeVar("R")

MOST_REBUILDS = 100
"""Damaged files that a run builds again, one after the other; a disk with more of them is to be replaced."""


class DiscardedError(WorkspaceError):
    """A file of the workspace was damaged and is deleted: a run builds it again."""


@contextmanager
def damaged_discarded(workspace: Workspace) -> Iterator[None]:
    """Delete a file of the workspace that a job found damaged.

    Raises
    ------
    DiscardedError
        In place of the error that names the file.
    """
    try:
        yield
    except DamagedFileError as error:
        path = Path(error.path)
        if not path.is_relative_to(workspace.root):
            raise
        remove_file(path)
        raise DiscardedError(f"{error}; it is deleted: run again to build it again") from error


def failed(error: Exception) -> State[Any]:
    """Return the state of a flow or a task that ended with an error that a person can mend; raise any other."""
    if (message := message_of(error)) is None:
        raise error
    return Failed(message=message, data=error)


def fails_in_one_line(run: Callable[P, R]) -> Callable[P, R]:
    """Let a flow's function return the state `Failed` for an error that a person can mend; put it below `@flow`.

    A bug is raised. After a `DiscardedError` the function is called again.
    """

    @wraps(run)
    def run_or_fail(*arguments: P.args, **options: P.kwargs) -> R:
        rebuilt = 0
        while True:
            try:
                return run(*arguments, **options)
            except Exception as error:  # noqa: BLE001 - `failed` raises what is a bug
                if not isinstance(error, DiscardedError) or rebuilt == MOST_REBUILDS:
                    return cast("R", failed(error))
                get_run_logger().warning("%s; it is built again", error.__cause__)
                rebuilt += 1

    return run_or_fail
