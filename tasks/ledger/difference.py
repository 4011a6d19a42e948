"""Compare two selections: what entered and left, why, of which groups, and the scores.

Documents are the same if their ids are; of an id that repeats, in the order of their texts. The join is DuckDB's, in a
file and within a memory limit.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import duckdb
from pydantic import BaseModel

from fineweb_mask.models.columns import is_nested
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.names import find
from fineweb_mask.models.settings.output import TEXT_IS_NO_GROUP
from fineweb_mask.tasks.catalog.quoting import identifier, literal
from fineweb_mask.tasks.catalog.spilling import spilling_database
from fineweb_mask.tasks.ledger.decisions import Corpus
from fineweb_mask.tasks.storage.parquet import read_schema

MOST_GROUPS = 1_000
"""Values of a column, of which more are no groups."""
MEMORY = "2GB"
NO_GROUPS = {"row", "source_row", "text", "content_hash", "id", "quality"}
"""Columns that are not named to a user who looks for one of groups."""

OF_SIDE = """
    SELECT id, url, coalesce({by}::VARCHAR, '') AS by_group, content_hash::BLOB AS content_hash, stage, reason,
           selected, token_count::BIGINT AS tokens, {scores}
    FROM fates
    """

COMPARED = """
    CREATE TABLE compared AS
    SELECT coalesce(b.url, a.url, id) AS name, coalesce(nullif(b.by_group, ''), a.by_group, '') AS "group",
           coalesce(a.selected, false) AS before, coalesce(b.selected, false) AS after, a, b
    FROM (SELECT *, {occurrence} FROM a) AS a FULL JOIN (SELECT *, {occurrence} FROM b) AS b USING (id, occurrence)
    """
OCCURRENCE = "row_number() OVER (PARTITION BY id ORDER BY content_hash, stage, reason) AS occurrence"
"""Which of several documents of an id one is."""

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


class DiffSummary(BaseModel):
    """What changed between two selections; `fineweb-mask diff --json` prints it."""

    status: Literal["done", "changed"]
    a: dict[str, Any]  # the earlier side: name, documents and tokens that are selected
    b: dict[str, Any]
    by: str
    in_both: int
    entered: int
    left: int
    other_text: int  # selected by both, with another text
    changed: float  # share of the documents that either selects which are not in both
    tolerance: float | None
    is_above: bool
    entered_by: list[dict[str, Any]]  # by what the earlier side decided, with examples
    left_by: list[dict[str, Any]]
    groups: list[dict[str, Any]]
    scores: list[dict[str, Any]]
    steps: list[dict[str, Any]]


def compare(sides: Sequence[tuple[str, Corpus]], by: str, tolerance: float | None = None) -> DiffSummary:
    """Return what changed from the first to the second of two selections.

    Parameters
    ----------
    sides
        The earlier and the later, with what a person calls each.
    by
        Column whose values are groups.
    tolerance
        Share of the documents that either selects which may differ; None: any.

    Raises
    ------
    DataError
        If no document has the column, or it has too many values.
    """
    (a, earlier), (b, later) = sides
    scores = [name for name in earlier.scores if name in later.scores]
    with (
        TemporaryDirectory(prefix="fineweb-mask-") as folder,
        spilling_database(Path(folder) / "spill", MEMORY, "diff", file="diff.duckdb") as connection,
    ):
        _load(connection, earlier, "a", by, scores)
        _load(connection, later, "b", by, scores)
        return compared(connection, (a, b), by, scores, tolerance)


def _load(connection: duckdb.DuckDBPyConnection, side: Corpus, table: str, by: str, scores: list[str]) -> None:
    """Create the table of a side's documents, with a column whose values are groups."""
    if by == "text":
        raise DataError(f"--by text: {TEXT_IS_NO_GROUP}")
    first = side.shards[0]
    schemas = [read_schema(side.workspace.resolve(file)) for file in (first.documents, first.scores)]
    columns = [field.name for schema in schemas for field in schema if not is_nested(field.type)]
    if (own := find(by, columns)) is None:
        names = ", ".join(dict.fromkeys(name for name in columns if name not in NO_GROUPS))
        raise DataError(f"--by {by}: no document has a group there: name one of {names}")
    named = ", ".join(f"{identifier(name)}::DOUBLE AS {identifier(name)}" for name in scores)
    query = OF_SIDE.format(by=identifier(own), scores=named)
    side.gather(connection, query, table, ["id", "url", "content_hash", "token_count", own, *scores])
    [[groups]] = connection.execute(f"SELECT count(DISTINCT by_group) FROM {table}").fetchall()  # noqa: S608 - a or b
    if groups > MOST_GROUPS:
        raise DataError(
            f"--by {by}: it has {groups:,} values, which are no groups (at most {MOST_GROUPS:,} are): name a "
            "column with fewer, such as dump or language"
        )


def compared(
    connection: duckdb.DuckDBPyConnection, names: tuple[str, str], by: str, scores: list[str], tolerance: float | None
) -> DiffSummary:
    """Return what changed from the table `a` to the table `b`."""
    connection.execute(COMPARED.format(occurrence=OCCURRENCE))

    def rows(query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = connection.sql(query).to_arrow_table().to_pylist()
        return found

    [totals] = rows(TOTALS)
    both = totals["in_both"]
    either = totals["a"] + totals["b"] - both
    changed = 1 - both / either if either else 0.0
    is_above = tolerance is not None and changed > tolerance
    moved = (SCORES.format(name=literal(name), score=identifier(name)) for name in scores)
    return DiffSummary(
        status="changed" if is_above else "done",
        a={"name": names[0], "selected": totals["a"], "tokens": totals["a_tokens"]},
        b={"name": names[1], "selected": totals["b"], "tokens": totals["b_tokens"]},
        by=by,
        in_both=both,
        entered=totals["b"] - both,
        left=totals["a"] - both,
        other_text=totals["other_text"],
        changed=changed,
        tolerance=tolerance,
        is_above=is_above,
        entered_by=rows(CHANGES.format(other="a", chosen="after AND NOT before")),
        left_by=rows(CHANGES.format(other="b", chosen="before AND NOT after")),
        groups=rows(GROUPS),
        scores=[row for query in moved for row in rows(query)],
        steps=rows(STEPS),
    )
