"""Count what every step before the selection drops of each group of documents, from the source on."""

from typing import Any, ClassVar

import duckdb
import pyarrow as pa

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.losses import LEAST_DOCUMENTS, OTHER_NAMES, WIPED_SHARE, Wiped, names_groups
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.schemas import LOSSES
from fineweb_mask.tasks.catalog.fates import DECISIONS, show_fates
from fineweb_mask.tasks.catalog.quoting import identifier
from fineweb_mask.tasks.catalog.spilling import open_database
from fineweb_mask.tasks.storage.parquet import read_schema, read_table
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, stage_task
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

MOST_GROUPS = 10_000
"""Values of a column, above which it names no groups."""
LONGEST_VALUE = 200
"""Characters of a value that are compared."""
DOCUMENTS_OF_A_GROUP = 20
"""A column that no setting names has at least so many for each value, on average."""
UNASKED = {"id", "url", "text", "date", "file_path", "language", *DECISIONS}
"""Columns that name groups only if a setting says so: dates and files are many, a language is dropped on purpose."""
NAMED = 50
"""Groups that are wiped out of which the details tell."""

COUNTED = """
    CREATE OR REPLACE TABLE counted AS
    WITH cut AS (SELECT {values}, stage, reason FROM fates),
         rows AS (FROM cut UNPIVOT INCLUDE NULLS (value FOR by_column IN ({names})))
    SELECT by_column, value, stage, reason, sum(documents)::BIGINT AS documents
    FROM (FROM counted UNION ALL BY NAME
          SELECT by_column, nullif(value, '') AS value, stage, reason, count(*) AS documents FROM rows GROUP BY ALL)
    GROUP BY ALL
    """
"""Add how many documents of a shard have each value of a column, by what dropped them; null: nothing."""

DROPPED = f"""
    WITH counts AS (
        SELECT by_column, value, stage, reason, documents AS dropped,
               CASE WHEN stage = 'ingest' THEN 0 WHEN stage IS NULL THEN 99
                    ELSE list_position({list(OTHER_NAMES)}, reason) END AS step
        FROM counted WHERE list_contains($columns, by_column)
    ), found AS (
        SELECT *, coalesce(sum(dropped) OVER (
            PARTITION BY by_column, value ORDER BY step DESC RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ), 0)::BIGINT AS documents, count(*) OVER (PARTITION BY by_column, value) AS reasons
        FROM counts
    )
    SELECT by_column, value, stage, reason, documents, if(stage IS NULL, 0, dropped) AS dropped
    FROM found WHERE stage IS NOT NULL OR reasons = 1
    ORDER BY by_column, value NULLS LAST, step, dropped DESC, reason
    """  # noqa: S608 - words of our own
"""What every step drops of each group, of those that come to it: what it and the steps after it drop, or keep."""

WIPED = """
    SELECT by_column, value, if(stage = 'ingest', stage, reason) AS step, max(documents)::BIGINT AS documents,
           (max(documents) - sum(dropped))::BIGINT AS kept, map(list(reason), list(dropped)) AS reasons
    FROM losses WHERE stage IS NOT NULL AND value IS NOT NULL GROUP BY ALL
    HAVING max(documents) >= $least AND kept < $share * max(documents) ORDER BY kept - max(documents), by_column, value
    """
"""Groups of which one step keeps less than a share; documents without a value are no group, a broken row has none."""


class LossesJob(StageJob):
    """Count the losses of a corpus: by ingest, and by later steps as far as the shards have their files."""

    stage: ClassVar[Stage] = Stage(
        "losses",
        version=2,
        label="dedup",
        folders=("losses",),
        interim=True,  # one of each state of the corpus: a new shard makes no file stale
    )
    name: ClassVar[str] = "corpus"
    shards: list[ShardFiles]
    by: list[str] | None  # columns; None: those of text with few values

    @property
    def shard_names(self) -> list[str]:
        """The names of the shards."""
        return [shard.name for shard in self.shards]

    def depends_on(self) -> Dependencies:
        """Return the columns, the least share, and the fingerprints of the documents, their vectors and duplicates."""
        files = [(shard.name, shard.documents, shard.embeddings, shard.duplicates) for shard in self.shards]
        return Dependencies(settings=[self.by, WIPED_SHARE], inputs=files)


@stage_task
def count_losses(job: LossesJob) -> None:
    """Write what each step drops of each group; the details name the columns, and the groups that are wiped out.

    Raises
    ------
    SettingsError
        If a column of `report.by` has too many values.
    """
    with open_database() as connection:
        columns = _count(connection, job)
        connection.execute(f"CREATE TABLE losses AS {DROPPED}", {"columns": columns})
        found = connection.sql("FROM losses").to_arrow_table().cast(LOSSES)
        wiped = connection.sql(WIPED, params={"share": WIPED_SHARE, "least": LEAST_DOCUMENTS}).to_arrow_table()
    with stage_file_writer(job.output, LOSSES, job.key) as writer:
        for batch in found.to_batches():
            writer.write(batch)
        writer.details = {
            "columns": columns,
            "wiped": wiped.slice(0, NAMED).to_pylist(maps_as_pydicts="strict"),
            "wiped_groups": wiped.num_rows,
        }


def _count(connection: duckdb.DuckDBPyConnection, job: LossesJob) -> list[str]:
    """Create the table `counted`, and return the columns whose values are groups: those of text with few, unless asked.

    Raises
    ------
    SettingsError
        If one that is asked for has too many values.
    """
    connection.execute(
        "CREATE TABLE counted (by_column VARCHAR, value VARCHAR, stage VARCHAR, reason VARCHAR, documents BIGINT)"
    )
    columns = job.by
    if columns is None:
        fields = read_schema(job.workspace.resolve(job.shards[0].documents))
        texts = (field.name for field in fields if names_groups(field.type) and not pa.types.is_integer(field.type))
        columns = [name for name in texts if name not in UNASKED]
    for shard in track("shards", job.shards):
        if not columns:
            break
        show_fates(connection, job.workspace, shard, columns)
        names = [identifier(name) for name in columns]
        values = ", ".join(f"left({name}::VARCHAR, {LONGEST_VALUE}) AS {name}" for name in names)
        connection.execute(COUNTED.format(values=values, names=", ".join(names)))
        many = connection.execute(
            "SELECT by_column FROM counted GROUP BY ALL HAVING count(DISTINCT value) > $most", {"most": MOST_GROUPS}
        ).fetchall()
        for (name,) in many:
            if job.by is not None:
                raise SettingsError(
                    f"report.by: the column {name!r} has too many values to name groups, more than "
                    f"{MOST_GROUPS:,}: name another, or leave it out"
                )
            columns.remove(name)
            connection.execute("DELETE FROM counted WHERE by_column = $name", {"name": name})
    if job.by is not None:
        return list(dict.fromkeys(job.by))
    found = connection.execute(
        "SELECT by_column FROM counted GROUP BY ALL "
        "HAVING count(DISTINCT value) BETWEEN 2 AND sum(documents) / $each ORDER BY by_column",
        {"each": DOCUMENTS_OF_A_GROUP},
    )
    return [name for (name,) in found.fetchall()]


def wiped_groups(file: StageFile) -> list[Wiped]:
    """Return the groups that are wiped out, the largest losses first, of a file that `count_losses` wrote."""
    return [Wiped(**one) for one in file.details.get("wiped", [])]


def read_losses(workspace: Workspace, file: StageFile) -> list[dict[str, Any]]:
    """Return the rows of a file that `count_losses` wrote; none of `NO_FILE`."""
    return list(read_table(workspace.resolve(file)).to_pylist()) if file.path else []
