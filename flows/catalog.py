"""The catalog of a workspace, written anew where its last run did not come to that."""

from flows.status import StatusError, look_at
from tasks.catalog import write_catalog
from tasks.lake import LakeError, Workspace
from tasks.last_run import LastRun


class CatalogError(ValueError):
    """There is no catalog of the workspace as it is now."""


def rewrite_catalog(folder: str) -> None:
    """Write the catalog of what is there under the recipe of the workspace's last run.

    Raises
    ------
    CatalogError
        If the folder is no workspace, is in use, or what its last run read is out of reach.
    """
    workspace = Workspace(folder)
    if not workspace.holds(LastRun.path(workspace)):
        raise CatalogError(
            f"{folder} is no workspace in which a run was begun: first `fineweb-mask run RECIPE --workspace {folder}`"
        )
    try:
        with workspace.exclusive():
            write_catalog(workspace, look_at(folder).curation.catalogued())
    except (StatusError, LakeError, OSError) as error:
        raise CatalogError(str(error)) from error
