"""Write the files of a shard again without the documents that were removed, from its earlier files.

The documents are what ingest would write of the source with the list of what was removed; scores and vectors are those
of the documents that are left. So no source is read, and no model runs.
"""

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.documents import REMOVED, token_counts, without_removed
from fineweb_mask.models.ledger.removal import Unwanted
from fineweb_mask.models.losses import OutcomeCounts
from fineweb_mask.models.schemas import DROPPED, KNOWN, OUTCOMES
from fineweb_mask.tasks.embed import WRITTEN, EmbedJob
from fineweb_mask.tasks.ingest import IngestJob
from fineweb_mask.tasks.score import ScoreJob
from fineweb_mask.tasks.source.reader import BATCH_ROWS
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_table
from fineweb_mask.tasks.storage.remote.copies import local_copies
from fineweb_mask.tasks.workspace.job import find_file
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace


@local_copies()
def rewrite_documents(old: IngestJob, new: IngestJob, unwanted: Unwanted) -> None:
    """Write the documents of a shard, and what is beside them, unless they are there or the earlier ones are not."""
    before = old.current()
    if before is None or new.current() is not None:
        return
    workspace, gone = new.workspace, OutcomeCounts(new.settings.groups or ())
    details, rows, tokens, estimated = before.details, 0, 0, 0
    with VerifiedFile(workspace.resolve(before)) as file:
        schema = file.schema_arrow.remove_metadata()
        with stage_file_writer(new.output, schema, new.key) as writer:
            for group in range(file.num_row_groups):
                for batch in _as_ingested(file.read_row_group(group)):
                    names = (batch[name].to_pylist() for name in ("id", "url", "content_hash"))
                    removed = unwanted(*names)
                    taken = batch.filter(pa.array(removed)).drop_columns(["row", "n_chars"])
                    gone.add(taken, [REMOVED] * taken.num_rows)
                    left = _numbered(batch.filter(pa.array(~removed)), rows)
                    writer.write(left)
                    rows += left.num_rows
                    tokens += int(token_counts(left["token_count"], left["n_chars"]).sum())
                    estimated += left["token_count"].null_count
            dropped = Counter(details["dropped"])
            dropped[REMOVED] += before.rows - rows
            writer.details = {
                **details,
                "dropped": {reason: count for reason, count in sorted(dropped.items()) if count},
                "tokens": tokens,
                "tokens_estimated": estimated,
            }
    _, known, aside, outcomes = old.stage.folders
    if (file_of_known := find_file(old, known, old.name, None)) is not None:
        with stage_file_writer(new.beside("known"), KNOWN, new.key) as writer:
            writer.write(_one_batch(read_table(workspace.resolve(file_of_known))))
    if (file_of_dropped := find_file(old, aside, old.name, None)) is not None:
        rewrite_dropped(workspace, file_of_dropped.path, new, unwanted)
    if (counted := find_file(old, outcomes, old.name, None)) is not None:
        with stage_file_writer(new.beside("outcomes"), OUTCOMES, new.key) as writer:
            writer.write(_one_batch(_moved(read_table(workspace.resolve(counted)), gone)))
            writer.details = counted.details


def rewrite_dropped(workspace: Workspace, path: str, new: IngestJob, unwanted: Unwanted) -> None:
    """Write what ingest dropped of a shard and kept aside, from an earlier file, which may be the same one."""
    with (
        VerifiedFile(workspace.local(path)) as file,
        stage_file_writer(new.beside("dropped"), DROPPED, new.key) as writer,
    ):
        for batch in file.iter_batches(BATCH_ROWS):
            writer.write(without_removed(batch, unwanted))


@local_copies()
def rewrite_rows(old: ScoreJob | EmbedJob, new: ScoreJob | EmbedJob) -> None:
    """Write the scores or vectors of a shard's documents that are left, unless they are there."""
    workspace, before = new.workspace, old.current()
    if before is None or new.current() is not None:
        return
    kept = _kept(workspace, old.documents, new.documents)
    is_vectors, bad, rows, start = isinstance(new, EmbedJob), 0, 0, 0
    with VerifiedFile(workspace.resolve(before)) as file:
        schema, options = file.schema_arrow.remove_metadata(), WRITTEN if is_vectors else {}
        with stage_file_writer(new.output, schema, new.key, **options) as writer:
            for batch in file.iter_batches(BATCH_ROWS):
                left = _numbered(batch.filter(pa.array(kept[start : start + batch.num_rows])), rows)
                start, rows = start + batch.num_rows, rows + left.num_rows
                bad += left["embedding"].null_count if is_vectors else 0
                writer.write(left)
            writer.details = {**before.details, **({"bad_vectors": bad} if is_vectors else {})}


def _kept(workspace: Workspace, old: StageFile, new: StageFile) -> NDArray[np.bool_]:
    """Return which rows of a shard's earlier documents are left, (n,)."""
    before, after = (
        read_table(workspace.resolve(file), columns=["source_row"])["source_row"].to_numpy() for file in (old, new)
    )
    return np.isin(before, after)


def _as_ingested(table: pa.Table) -> list[pa.RecordBatch]:
    """Return documents in batches that end where those of the source did, as far as it is known."""
    ends = np.flatnonzero(np.diff(table["source_row"].to_numpy() // BATCH_ROWS)) + 1
    places = [0, *ends.tolist(), table.num_rows]
    parts = (table.slice(start, end - start) for start, end in pairwise(places))
    return [batch for part in parts for batch in part.combine_chunks().to_batches()]


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """Return a small table as one batch, as ingest writes it."""
    return pa.RecordBatch.from_pylist(table.to_pylist(), schema=table.schema.remove_metadata())


def _numbered(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    """Return rows that are numbered from `first` on."""
    rows = pa.array(np.arange(first, first + batch.num_rows), batch.schema.field("row").type)
    return batch.set_column(batch.schema.get_field_index("row"), batch.schema.field("row"), rows)


def _moved(counted: pa.Table, gone: OutcomeCounts) -> pa.Table:
    """Return the numbers of rows by value and outcome, of which some kept ones are removed now."""
    counts = Counter[tuple[str, str | None, str | None]]()
    for row in counted.to_pylist():
        counts[row["by_column"], row["value"], row["reason"]] = row["documents"]
    columns = {column for column, _, _ in counts}
    for row in gone.rows():
        if row["by_column"] in columns:
            counts[row["by_column"], row["value"], None] -= row["documents"]
            counts[row["by_column"], row["value"], REMOVED] += row["documents"]
    rows = [
        {"by_column": column, "value": value, "reason": reason, "documents": number}
        for (column, value, reason), number in counts.items()
        if number
    ]
    in_order = sorted(rows, key=lambda row: [row["by_column"], row["value"] or "", row["reason"] or ""])
    return pa.Table.from_pylist(in_order, schema=OUTCOMES)
