"""Open a finished workspace in Python: its documents, scores and selection as tables."""

import atexit
import logging
from contextlib import ExitStack
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fineweb_mask.flows import ledger
from fineweb_mask.flows.ledger import WhySummary
from fineweb_mask.flows.status.catalog import ensure_catalog
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.urls import reject_credentials, require_writable
from fineweb_mask.tasks.catalog.query import answers, open_catalog
from fineweb_mask.tasks.catalog.views import ensure_views_local
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation


class OpenedWorkspace:
    """A workspace as the tables that `fineweb-mask sql` has; made by `open_workspace`.

    Every one, such as `sql("FROM fates")`, is a DuckDB relation. It is computed when it is read, by
    `.to_arrow_table()`, `.df()` (pandas), `.pl()` (polars) or `.fetchall()`, and narrowed by `.filter("quality > 1")`,
    `.project("id, text")`, `.limit(5)`.

    Parameters
    ----------
    workspace
        The workspace.
    memory_limit
        Memory that DuckDB may use before it spills to disk, such as "2GB".
    """

    def __init__(self, workspace: Workspace, memory_limit: str) -> None:
        self._opened = ExitStack()
        atexit.register(self._opened.close)  # a table is read through its connection when this object may be gone
        self._connection = self._opened.enter_context(open_catalog(workspace, memory_limit))
        self._workspace = workspace

    @property
    def fates(self) -> "DuckDBPyRelation":
        """A row for each document that the source held: the stage that decided on it last, and how."""
        return self.sql("FROM fates")

    @property
    def selected(self) -> "DuckDBPyRelation":
        """The selected documents, with their scores, as the dataset has them."""
        return self.sql("FROM selected")

    def sql(self, query: str) -> "DuckDBPyRelation":
        """Return the result of a query.

        Raises
        ------
        QueryError
            If it is no query, or fails.
        """
        return next(answers(self._connection, query)).relation

    def why(self, *documents: str) -> WhySummary:
        """Return what every stage decided on documents, by URL or id.

        Its `documents` hold the numbers, `unknown` names what is not found; printed, it is a paragraph for each.

        Raises
        ------
        StatusError
            If the source or models of the last run are out of reach.
        """
        return ledger.why(self._workspace.address, documents)

    @cached_property
    def settings(self) -> PipelineSettings:
        """The recipe of the last run."""
        return LastRun.load(self._workspace).settings

    @property
    def dataset(self) -> Path:
        """The folder of the selected documents, as `datasets.load_dataset` takes it."""
        return self._workspace.local("dataset")

    @property
    def report(self) -> Path:
        """The report's page."""
        return self._workspace.local("reports") / "index.html"

    def close(self) -> None:
        """Close the tables; else they stay open until the process ends."""
        atexit.unregister(self._opened.close)
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<workspace {self._workspace.display_path(self._workspace.root)}: {self._counts()}>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        folder = escape(str(self._workspace.display_path(self._workspace.root)))
        return f"<b>{folder}</b>: {escape(self._counts())}"

    def _counts(self) -> str:
        [[documents]] = self._connection.sql("SELECT count(*) FROM documents").fetchall()
        [[selected]] = self._connection.sql("SELECT count(*) FROM selected").fetchall()
        return f"{documents:,} documents, {selected:,} selected"


def open_workspace(folder: str | Path, *, memory_limit: str = "2GB") -> OpenedWorkspace:
    """Open a workspace in which a run has ended.

    Parameters
    ----------
    folder
        Folder or URL; of a URL the files are downloaded first.
    memory_limit
        Memory that DuckDB may use before it spills to disk.

    Raises
    ------
    StatusError
        If the folder is no workspace, or has no catalog and what its last run read is out of reach.
    """
    workspace = Workspace(require_writable(reject_credentials(str(folder))))
    if note := ensure_catalog(str(folder)):
        logger.warning("%s: %s", folder, note)
    ensure_views_local(workspace)
    return OpenedWorkspace(workspace, memory_limit)
