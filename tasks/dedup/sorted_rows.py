"""Write rows in the order of their first column, and read a range of them without the rest of the file.

Row groups are small, and each records its first and its last value: a reader opens only those in its range.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.tasks.workspace.references import StageFile, StageKey
from fineweb_mask.tasks.workspace.stage_parquet import open_parquet, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

ROW_GROUP_ROWS = 8_192
"""A shard of 400,000 documents has 49 row groups, for which its footer takes 10 KB."""


def write_sorted(
    path: Path, schema: pa.Schema, key: StageKey, batches: Iterable[pa.RecordBatch], group_rows: int | None = None
) -> None:
    """Write batches whose rows are in the order of the first column, in row groups of so many rows."""
    most = group_rows or ROW_GROUP_ROWS
    with stage_file_writer(path, schema, key, use_dictionary=False) as writer:
        for batch in batches:
            for start in range(0, batch.num_rows, most):
                writer.write(batch.slice(start, most))
                writer.flush()


def read_range(workspace: Workspace, file: StageFile, first: bytes | int, last: bytes | int) -> pa.Table:
    """Return the rows of a sorted file whose first column is from `first` to `last`, both included.

    At a URL, only the row groups that hold some of them and the footer are downloaded.
    """
    with open_parquet(workspace.root / file.path) as opened:
        footer = opened.metadata

        def lowest(group: int) -> Any:  # noqa: ANN401 - bytes or a number
            return footer.row_group(group).column(0).statistics.min

        def highest(group: int) -> Any:  # noqa: ANN401
            return footer.row_group(group).column(0).statistics.max

        groups = range(footer.num_row_groups)
        start, stop = bisect_left(groups, first, key=highest), bisect_right(groups, last, key=lowest)
        table = opened.read_row_groups(list(groups[start:stop]))
    kind = table.schema.field(0).type
    is_inside = pc.and_(
        pc.greater_equal(table[0], pa.scalar(first, kind)), pc.less_equal(table[0], pa.scalar(last, kind))
    )
    return table.filter(is_inside)


def runs(sizes: Sequence[float], most: float) -> Iterator[range]:
    """Divide places into runs, in their order, whose sizes add up to at most `most`, or that are one place.

    Examples
    --------
    >>> list(runs([4, 4, 4, 9, 1], most=8))
    [range(0, 2), range(2, 3), range(3, 4), range(4, 5)]
    """
    start, total = 0, 0.0
    for place, size in enumerate(sizes):
        if place > start and total + size > most:
            yield range(start, place)
            start, total = place, 0.0
        total += size
    if sizes:
        yield range(start, len(sizes))
