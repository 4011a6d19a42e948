"""Count what every step before the selection drops of each group of documents, from the source on."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.losses import Loss, Wiped, by_group, labels, losses, too_many_values, wiped_out
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.schemas import LOSSES, OUTCOMES
from fineweb_mask.tasks.selection.inputs.shard_documents import has_vector
from fineweb_mask.tasks.storage.parquet import read_schema, read_table
from fineweb_mask.tasks.workspace.job import Dependencies, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import COUNTED, NEAR, SAME_URL, ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, read_stage_footer, stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

MOST_GROUPS = 10_000
"""Values of a column in the corpus, above which it names no groups."""
DOCUMENTS_OF_A_GROUP = 20
"""A column that no setting names has at least so many for each value, on average."""
UNASKED = frozenset({"date", "file_path", "language"})
"""Columns that name groups only if a setting says so: dates and files are many, a language is dropped on purpose."""
COUNTED_AT_ONCE = 4
"""Shards that are counted at the same time."""
SUMMED_AT_ONCE = 64
NAMED = 50
"""Groups that are wiped out of which the details tell."""

TALLY = pa.schema([*list(OUTCOMES)[:2], pa.field("stage", pa.string()), *list(OUTCOMES)[2:]])


class LossesJob(ShardJob):
    """Count the losses of a corpus: by ingest, and by later steps as far as the shards have their files."""

    stage: ClassVar[Stage] = Stage(
        "losses",
        version=1,
        label="dedup",
        folders=("losses",),
        interim=True,  # one of each state of the corpus: a new shard makes no file stale
    )
    name: ClassVar[str] = "corpus"
    shards: list[ShardFiles]
    groups: list[str] | None  # columns; None: those of text with few values
    share: float  # of a group that a step keeps, below which it is wiped out

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards."""
        return [shard.name for shard in self.shards]

    def depends_on(self) -> Dependencies:
        """Return the columns and the share, and the fingerprints of the documents, their vectors and duplicates."""
        files = [(shard.name, shard.documents, shard.embeddings, shard.duplicates) for shard in self.shards]
        return Dependencies(settings=[self.groups, self.share], inputs=files)


@stage_task
def count_losses(job: LossesJob) -> None:
    """Write what each step drops of each group; the details name the columns, and the groups that are wiped out.

    Raises
    ------
    SettingsError
        If a column of `ingest.groups` has too many values, or no shard has it.
    """
    kinds: dict[str, set[str]] = defaultdict(set)
    unfit = set[str]()

    def ingested() -> Iterator[pa.Table]:
        for table, columns, too_many in _each(partial(_outcomes, job.workspace), job.shards):
            unfit.update(too_many)
            for name, kind in columns.items():
                kinds[name].add(kind)
            yield table

    of_ingest, many = _summed(ingested())
    columns = _columns(job.groups, of_ingest, kinds, many | unfit)
    later, _ = _summed(_each(partial(_dropped_later, job.workspace, columns), job.shards) if columns else ())
    counted: dict[tuple[str, str | None], Counter[tuple[str, str | None]]] = defaultdict(Counter)
    both = pa.concat_tables([of_ingest, later])
    wanted = pc.is_in(both["by_column"], value_set=pa.array(columns, pa.string()))
    for row in both.filter(wanted).to_pylist():
        counted[row["by_column"], row["value"]][row["stage"], row["reason"]] = row["documents"]
    in_order = sorted(counted, key=lambda group: (group[0], group[1] is None, group[1] or ""))
    found = [loss for group in in_order for loss in losses(group, counted[group])]
    wiped = wiped_out(by_group(found), job.share)
    with stage_file_writer(job.output, LOSSES, job.key) as writer:
        writer.write(pa.RecordBatch.from_pylist([loss._asdict() for loss in found], schema=LOSSES))
        writer.details = {
            "columns": columns,
            "share": job.share,
            "wiped": [one._asdict() for one in wiped[:NAMED]],
            "wiped_groups": len(wiped),
        }


def wiped_groups(file: StageFile) -> list[Wiped]:
    """Return the groups that are wiped out, the largest losses first, of a file that `count_losses` wrote."""
    return [Wiped(**one) for one in file.details.get("wiped", [])]


def read_losses(workspace: Workspace, file: StageFile) -> list[Loss]:
    """Return the rows of a file that `count_losses` wrote; none of `NO_FILE`."""
    return [Loss(**row) for row in read_table(workspace.resolve(file)).to_pylist()] if file.path else []


def _each(read: Any, shards: Sequence[ShardFiles]) -> Iterator[Any]:  # noqa: ANN401
    """Yield what is read of every shard, of a few at the same time."""
    with ThreadPoolExecutor(COUNTED_AT_ONCE) as pool:
        for first in range(0, len(shards), COUNTED_AT_ONCE):
            raise_if_stopped()
            yield from pool.map(read, shards[first : first + COUNTED_AT_ONCE])


def _outcomes(workspace: Workspace, shard: ShardFiles) -> tuple[pa.Table, dict[str, str], list[str]]:
    """Return what ingest counted of a shard, the types of the columns, and the columns of too many values."""
    path = workspace.root / shard.documents.path.replace("documents/", "outcomes/", 1)
    table, footer = read_table(path, schema=OUTCOMES), read_stage_footer(path)
    assert footer is not None  # noqa: S101 - the file was built by a stage
    stage = pa.array(["ingest"] * len(table), pa.string())
    counts = table.add_column(2, TALLY.field("stage"), stage).cast(TALLY)
    return counts, footer.details["columns"], footer.details["too_many_values"]


def _dropped_later(workspace: Workspace, columns: Sequence[str], shard: ShardFiles) -> pa.Table:
    """Count the documents of a shard that are duplicates or have no vector."""
    reasons = np.full(shard.rows, None, dtype=object)
    if shard.embeddings.path and shard.embeddings.details.get("bad_vectors"):
        reasons[~has_vector(workspace, shard)] = "bad_vector"
    if shard.duplicates.rows:
        repeated = duplicate_rows(workspace, shard.duplicates)
        reasons[repeated] = "duplicate"
        if any(map(shard.duplicates.details.get, COUNTED)):
            listed = read_table(workspace.resolve(shard.duplicates), columns=["twin_shard", "similarity"])
            reasons[repeated[listed["twin_shard"].is_valid().to_numpy()]] = SAME_URL
            reasons[repeated[listed["similarity"].is_valid().to_numpy()]] = NEAR
    rows = np.flatnonzero(reasons)
    path = workspace.resolve(shard.documents) if len(rows) else None
    present = set() if path is None else set(read_schema(path).names)
    read = [name for name in columns if name in present]
    if path is None or not read:
        return TALLY.empty_table()
    documents, why = read_table(path, columns=read).take(pa.array(rows)), pa.array(reasons[rows], pa.string())
    stages = pc.if_else(pc.equal(why, "bad_vector"), "select", "dedup")
    ones = np.ones(len(rows), dtype=np.int64)
    parts = [pa.table([[name] * len(rows), labels(documents[name]), stages, why, ones], TALLY.names) for name in read]
    return _sum([part.cast(TALLY) for part in parts])


def _sum(counts: Sequence[pa.Table]) -> pa.Table:
    """Return tables of counts as one, with one row for each value, stage and reason."""
    names = TALLY.names[:-1]
    table = pa.concat_tables(counts).group_by(names).aggregate([("documents", "sum")])
    return table.rename_columns([*names, "documents"]).cast(TALLY)


def _summed(counts: Iterable[pa.Table]) -> tuple[pa.Table, set[str]]:
    """Return the sum of the counts of shards without columns of too many values, and these columns."""
    total, many, remaining = TALLY.empty_table(), set[str](), iter(counts)
    while some := list(islice(remaining, SUMMED_AT_ONCE)):
        total = _sum([total, *some])
        many |= {name for name, (values, _) in _sizes(total).items() if values > MOST_GROUPS}
        total = total.filter(pc.invert(pc.is_in(total["by_column"], value_set=pa.array(sorted(many), pa.string()))))
    return total, many


def _sizes(counts: pa.Table) -> dict[str, tuple[int, int]]:
    """Return the number of values of each column, null aside, and of documents."""
    found = counts.group_by("by_column").aggregate([("value", "count_distinct"), ("documents", "sum")])
    return {row["by_column"]: (row["value_count_distinct"], row["documents_sum"]) for row in found.to_pylist()}


def _columns(
    wanted: Sequence[str] | None, ingested: pa.Table, kinds: Mapping[str, set[str]], many: Set[str]
) -> list[str]:
    """Return the columns whose values are groups: those that are wanted, or else those of text with few values.

    Raises
    ------
    SettingsError
        If a wanted one has too many values, or no shard has it.
    """
    sizes = {name: size for name, size in _sizes(ingested).items() if name not in many}
    for name in wanted or []:
        if name in many:
            raise too_many_values(name, f"1,000 in one file, of 200 characters, and {MOST_GROUPS:,} in the corpus")
        if name not in sizes:
            raise SettingsError(
                f"ingest.groups: no file has a column {name!r} of text, whole numbers or booleans: name one of "
                f"{', '.join(sorted(sizes))}"
            )
    if wanted is not None:
        return list(dict.fromkeys(wanted))
    return [
        name
        for name, (values, documents) in sorted(sizes.items())
        if kinds[name] <= {"string", "bool"} and name not in UNASKED and 2 <= values <= documents / DOCUMENTS_OF_A_GROUP
    ]
