"""Check that a column has groups of documents before two sides are compared by it."""

from collections.abc import Sequence

from fineweb_mask.models.columns import is_nested
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.names import find
from fineweb_mask.models.schemas import ROW, SOURCE_ROW
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.tasks.reporting.samples import evenly_spaced
from fineweb_mask.tasks.selection.inputs.shard_documents import read_groups
from fineweb_mask.tasks.storage.parquet import read_schema
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace

MOST_SHARDS = 64
"""Whose columns are looked at."""
FIRST_SHARDS = 4
"""In which the values of the column are counted."""
MOST_GROUPS = 1_000
"""Values of the column, of which more are no groups."""
NO_GROUPS = {ROW.name, SOURCE_ROW.name, "text", "content_hash", "id", "quality"}
"""Columns that are not named to a user who looks for one of groups."""


def check_groups(workspace: Workspace, shards: Sequence[ShardFiles], by: str) -> None:
    """Check that some documents have a column, and in the first shards that do, not too many values of it.

    Raises
    ------
    DataError
        If not; the message names the columns that there are.
    """
    if by == "text":
        raise DataError(f"--by text: {TEXT_IS_NO_GROUP}")
    known, values, documents, found = dict[str, None](), set[str](), 0, 0
    for place in evenly_spaced(len(shards), MOST_SHARDS):
        columns = _columns(workspace, shards[place])
        if find(by, columns) is not None:
            values.update(read_groups(workspace, shards[place], by))
            documents, found = documents + shards[place].rows, found + 1
        if len(values) > MOST_GROUPS:
            raise DataError(
                f"--by {by}: it has {len(values):,} values in {documents:,} documents, which are no groups (at "
                f"most {MOST_GROUPS:,} are): name a column with fewer, such as dump or language"
            )
        if found == FIRST_SHARDS:
            break
        known |= dict.fromkeys(columns)
    if not found:
        names = ", ".join(name for name in known if name not in NO_GROUPS)
        raise DataError(f"--by {by}: no document has a group there: name one of {names}")


def _columns(workspace: Workspace, shard: ShardFiles) -> list[str]:
    """Return the columns of a shard's documents and scores that may have groups."""
    schemas = [read_schema(workspace.resolve(file)) for file in (shard.documents, shard.scores)]
    return [field.name for schema in schemas for field in schema if not is_nested(field.type)]
