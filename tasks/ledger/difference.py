"""Compare two workspaces, datasets or versions of one: what entered and left, why, of which groups, and the scores.

Documents are the same if their ids are; of an id that repeats, in the order of their texts. The join is DuckDB's, in a
file and within a memory limit.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from fineweb_mask.models.columns import is_nested
from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.names import find
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.tasks.catalog.fates import SELECTED
from fineweb_mask.tasks.catalog.quoting import identifier, literal
from fineweb_mask.tasks.catalog.spilling import spilling_database
from fineweb_mask.tasks.dataset.verify import DATA_SUFFIX, Dataset
from fineweb_mask.tasks.ledger.decisions import Corpus
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_schema
from fineweb_mask.tasks.workspace.manifest import Manifest

BATCH_ROWS = 5_000
MOST_GROUPS = 1_000
"""Values of a column, of which more are no groups."""
MEMORY = "2GB"
NO_GROUPS = {"row", "source_row", "text", "content_hash", "id", "quality"}
"""Columns that are not named to a user who looks for one of groups."""

OF_SIDE = """
    SELECT id, url, {by} AS by_group, content_hash::BLOB AS content_hash, stage, reason, selected,
           token_count::BIGINT AS tokens, {scores}
    FROM {fates}
    """

PAIRED = """
    CREATE TABLE {side} AS
    WITH repeated AS (SELECT id FROM loaded GROUP BY id HAVING count(*) > 1)
    SELECT *, 1 AS occurrence FROM loaded ANTI JOIN repeated USING (id) UNION ALL
    SELECT *, row_number() OVER (PARTITION BY id ORDER BY content_hash, stage, reason) AS occurrence
    FROM loaded SEMI JOIN repeated USING (id)
    """

COMPARED = """
    CREATE TABLE compared AS
    SELECT coalesce(b.url, a.url, id) AS name, coalesce(nullif(b.by_group, ''), a.by_group, '') AS "group",
           coalesce(a.selected, false) AS before, coalesce(b.selected, false) AS after, a, b
    FROM a FULL JOIN b USING (id, occurrence)
    """

TOTALS = """
    SELECT count(*) FILTER (before) AS a, count(*) FILTER (after) AS b, count(*) FILTER (before AND after) AS in_both,
           coalesce(sum(a.tokens) FILTER (before), 0)::BIGINT AS a_tokens,
           coalesce(sum(b.tokens) FILTER (after), 0)::BIGINT AS b_tokens,
           count(*) FILTER (before AND after AND a.content_hash <> b.content_hash) AS other_text
    FROM compared
    """

CHANGES = """
    SELECT coalesce({other}.stage, 'source') AS stage, coalesce({other}.reason, 'not in it') AS reason,
           count(*) AS documents, min_by(name, md5(name), 3) AS examples
    FROM compared WHERE {chosen} GROUP BY stage, reason ORDER BY documents DESC, stage, reason
    """
"""Documents that one side alone selects, by what the other decided on them."""

GROUPS = """
    SELECT "group", count(*) FILTER (before) AS a, count(*) FILTER (after) AS b,
           count(*) FILTER (after AND NOT before) AS entered, count(*) FILTER (before AND NOT after) AS "left"
    FROM compared GROUP BY "group" HAVING a + b > 0 ORDER BY entered + "left" DESC, "group"
    """

SCORES = """
    SELECT {name} AS score, count(*) AS documents, avg(a.{score}) AS a, avg(b.{score}) AS b,
           max(abs(b.{score} - a.{score})) AS largest,
           if(stddev_pop(a.{score}) * stddev_pop(b.{score}) > 0, corr(a.{score}, b.{score}), NULL) AS correlation
    FROM compared WHERE a.{score} IS NOT NULL AND b.{score} IS NOT NULL
    """
"""The means of a score over the documents that both sides score, and how it moved."""

STEPS = """
    SELECT stage, reason, count(*) FILTER (side = 'a') AS a, count(*) FILTER (side = 'b') AS b
    FROM (SELECT 'a' AS side, stage, reason, selected FROM a UNION ALL SELECT 'b', stage, reason, selected FROM b)
    WHERE NOT selected GROUP BY stage, reason
    ORDER BY list_position(['ingest', 'dedup', 'embed', 'select'], stage), reason
    """
"""How many documents each step drops."""


class WorkspaceSide(NamedTuple):
    """The selection of a workspace."""

    name: str  # what a person calls it
    corpus: Corpus

    @property
    def scores(self) -> list[str]:
        """Names of the scores, the quality first."""
        return self.corpus.scores

    def load(self, connection: duckdb.DuckDBPyConnection, by: str, scores: Sequence[str]) -> None:
        """Create the table `loaded` of the documents, with a column whose values are groups.

        Raises
        ------
        DataError
            If no document has the column.
        """
        if by == "text":
            raise DataError(f"--by text: {TEXT_IS_NO_GROUP}")
        first, workspace = self.corpus.shards[0], self.corpus.workspace
        schemas = [read_schema(workspace.resolve(file)) for file in (first.documents, first.scores)]
        columns = [field.name for schema in schemas for field in schema if not is_nested(field.type)]
        if (own := find(by, columns)) is None:
            names = ", ".join(dict.fromkeys(name for name in columns if name not in NO_GROUPS))
            raise DataError(f"--by {by}: no document has a group there: name one of {names}")
        query = _of_side("fates", f"coalesce({identifier(own)}::VARCHAR, '')", scores)
        self.corpus.gather(connection, query, "loaded", ["id", "url", "content_hash", "token_count", own, *scores])


class DatasetSide(NamedTuple):
    """The documents of a dataset, all of which are selected."""

    name: str  # what a person calls it
    dataset: Dataset
    manifest: Manifest

    @property
    def scores(self) -> list[str]:
        """Names of the scores, the quality first."""
        scorers = self.manifest.details.get("recipe", {}).get("quality", {}).get("scorers", [])
        names = (scorer.get("name", scorer["kind"]) for scorer in scorers)
        return ["quality", *(name for name in names if name != "quality")]

    def load(self, connection: duckdb.DuckDBPyConnection, by: str, scores: Sequence[str]) -> None:
        """Create the table `loaded` of the documents, with a column whose values are groups; if there is none, ''."""
        files = sorted(name for name in self.manifest.files if name.endswith(DATA_SUFFIX))
        needed = ["id", "url", "text", "token_count", *scores]
        query = _of_side("batch", "coalesce(by_group::VARCHAR, '')", scores)
        for number, name in enumerate(track("files", files)):
            with self.dataset.open(name) as stream, VerifiedFile(stream, name) as file:
                names = file.schema_arrow.names
                wanted = [column for column in dict.fromkeys([*needed, by]) if column in names]
                for place, batch in enumerate(file.iter_batches(BATCH_ROWS, columns=wanted)):
                    empty, texts = pa.nulls(batch.num_rows, pa.string()), batch["text"].to_pylist()
                    columns = {column: batch[column] if column in names else empty for column in needed}
                    columns |= {"by_group": batch[by] if by in names else empty}
                    columns |= {"content_hash": pa.array([content_hash(text) for text in texts], pa.binary(16))}
                    connection.register("batch", pa.table(columns))
                    into = "INSERT INTO loaded BY NAME" if number or place else "CREATE TABLE loaded AS"
                    connection.execute(f"{into} {query}")


Side = WorkspaceSide | DatasetSide
"""One of two that are compared."""


def _of_side(fates: str, by: str, scores: Sequence[str]) -> str:
    named = ", ".join(f"{identifier(name)}::DOUBLE AS {identifier(name)}" for name in scores)
    decided = f"(SELECT *, 'select' AS stage, '{SELECTED}' AS reason, true AS selected FROM batch)"  # noqa: S608
    return OF_SIDE.format(by=by, scores=named, fates=decided if fates == "batch" else fates)


def compare(sides: Sequence[Side], by: str, spill: Path, tolerance: float | None = None) -> dict[str, Any]:
    """Return what changed from the first to the second of two sides.

    Parameters
    ----------
    sides
        The earlier and the later.
    by
        Column whose values are groups.
    spill
        Folder for the database, which is emptied.
    tolerance
        Share of the documents that either selects which may differ; None: any.

    Raises
    ------
    DataError
        If no document of a workspace has the column, or it has too many values.
    """
    scores = [name for name in sides[0].scores if name in sides[1].scores]
    with spilling_database(spill, MEMORY, "diff", file="diff.duckdb") as connection:
        for name, side in zip("ab", sides, strict=True):
            side.load(connection, by, scores)
            [[groups]] = connection.execute("SELECT count(DISTINCT by_group) FROM loaded").fetchall()
            if groups > MOST_GROUPS:
                raise DataError(
                    f"--by {by}: it has {groups:,} values, which are no groups (at most {MOST_GROUPS:,} are): name a "
                    "column with fewer, such as dump or language"
                )
            connection.execute(PAIRED.format(side=name))
            connection.execute("DROP TABLE loaded")
        connection.execute(COMPARED)

        def rows(query: str) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = connection.sql(query).to_arrow_table().to_pylist()
            return found

        [totals] = rows(TOTALS)
        both = totals["in_both"]
        either = totals["a"] + totals["b"] - both
        changed = 1 - both / either if either else 0.0
        moved = (SCORES.format(name=literal(name), score=identifier(name)) for name in scores)
        return {
            **{
                name: {"name": side.name, "selected": totals[name], "tokens": totals[f"{name}_tokens"]}
                for name, side in zip("ab", sides, strict=True)
            },
            "by": by,
            "in_both": both,
            "entered": totals["b"] - both,
            "left": totals["a"] - both,
            "other_text": totals["other_text"],
            "changed": changed,
            "tolerance": tolerance,
            "is_above": tolerance is not None and changed > tolerance,
            "entered_by": rows(CHANGES.format(other="a", chosen="after AND NOT before")),
            "left_by": rows(CHANGES.format(other="b", chosen="before AND NOT after")),
            "groups": rows(GROUPS),
            "scores": [row for query in moved for row in rows(query)],
            "steps": rows(STEPS),
        }
