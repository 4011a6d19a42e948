"""Compare two workspaces, datasets or versions of one: what entered and left, why, of which groups, and score drift.

Documents are the same if their ids are; of an id that repeats, in the order of their texts. The join is DuckDB's, in a
file and within a memory limit.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.tasks.catalog.spilling import spilling_database
from fineweb_mask.tasks.ledger.decisions import SELECTED
from fineweb_mask.tasks.ledger.sides import FATES, Side
from fineweb_mask.tasks.reporting.page import Card, Column, Finding, Page, Section, Table, Tile
from fineweb_mask.tasks.reporting.page import Side as Cards

EXAMPLES = 10
"""Documents that are shown of each stage and reason."""
GROUPS = 50
"""Groups that are listed, those that change most first."""
MEMORY = "2GB"
NOT_THERE = "not in it"
"""Reason of a document that a side does not have at all, or that its ingest dropped without a note."""


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
    """
    scores = [name for name in sides[0].scores if name in sides[1].scores and name not in FATES.names]
    with spilling_database(spill, MEMORY, "diff", file="diff.duckdb") as connection:
        for name, side in zip("ab", sides, strict=True):
            _load(connection, name, side, by, scores)
        _join(connection, len(scores))
        found = _totals(connection, sides) | {"by": by, "tolerance": tolerance}
        found["is_above"] = tolerance is not None and found["changed"] > tolerance
        found["entered_by"], found["left_by"] = (_changes(connection, *pair) for pair in ("ba", "ab"))
        found["groups"] = _groups(connection)
        found["scores"] = [{"score": name, **_drift(connection, place)} for place, name in enumerate(scores)]
        found["steps"] = _steps(connection, sides)
        found["examples"] = _examples(connection, sides)
    return found


def _load(connection: duckdb.DuckDBPyConnection, name: str, side: Side, by: str, scores: Sequence[str]) -> None:
    """Create the table of a side, with the occurrence of each id; its scores are `score_0`, `score_1` and so on."""
    names = [*FATES.names, *(f"score_{place}" for place in range(len(scores)))]
    schema = pa.schema([*FATES, *(pa.field(score, pa.float64()) for score in names[len(FATES) :])])
    connection.from_arrow(schema.empty_table()).create("loaded")
    for table in side.fates(by):
        raise_if_stopped()
        connection.from_arrow(table.select([*FATES.names, *scores]).rename_columns(names)).insert_into("loaded")
    connection.execute(
        f"""
        CREATE TABLE {name} AS
        SELECT *, stage = 'select' AND reason = '{SELECTED}' AS chosen,
               row_number() OVER (PARTITION BY id ORDER BY content_hash, shard, row) AS occurrence
        FROM loaded
        """  # noqa: S608 - names of our own
    )
    connection.execute("DROP TABLE loaded")


def _join(connection: duckdb.DuckDBPyConnection, scores: int) -> None:
    """Create the table `compared`: a row for each document, with what each side has of it."""
    own = ["content_hash", "stage", "reason", "tokens", "shard", "row", "beginning"]
    own += [f"score_{place}" for place in range(scores)]
    pairs = ", ".join(f"{side}.{one} AS {side}_{one}" for one in own for side in "ab")
    connection.execute(
        f"""
        CREATE TABLE compared AS
        SELECT id, coalesce(b.url, a.url) AS url, coalesce(nullif(b.by_group, ''), a.by_group, '') AS by_group,
               coalesce(a.chosen, false) AS a_chosen, coalesce(b.chosen, false) AS b_chosen, {pairs}
        FROM a FULL JOIN b USING (id, occurrence)
        """  # noqa: S608 - names of our own
    )


def _rows(connection: duckdb.DuckDBPyConnection, query: str, **params: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = connection.sql(query, params=params or None).to_arrow_table().to_pylist()
    return found


def _totals(connection: duckdb.DuckDBPyConnection, sides: Sequence[Side]) -> dict[str, Any]:
    [row] = _rows(
        connection,
        """
        SELECT count(*) FILTER (a_chosen)::BIGINT AS a, count(*) FILTER (b_chosen)::BIGINT AS b,
               count(*) FILTER (a_chosen AND b_chosen)::BIGINT AS in_both,
               coalesce(sum(a_tokens) FILTER (a_chosen), 0)::BIGINT AS a_tokens,
               coalesce(sum(b_tokens) FILTER (b_chosen), 0)::BIGINT AS b_tokens,
               count(*) FILTER (a_chosen AND b_chosen AND a_content_hash <> b_content_hash)::BIGINT AS other_text
        FROM compared
        """,
    )
    either = row["a"] + row["b"] - row["in_both"]
    names = {
        name: {"name": side.name, "selected": row[name], "tokens": row[f"{name}_tokens"]}
        for name, side in zip("ab", sides, strict=True)
    }
    return {
        **names,
        "in_both": row["in_both"],
        "entered": row["b"] - row["in_both"],
        "left": row["a"] - row["in_both"],
        "other_text": row["other_text"],
        "changed": 1 - row["in_both"] / either if either else 0.0,
    }


def _changes(connection: duckdb.DuckDBPyConnection, chosen: str, other: str) -> list[dict[str, Any]]:
    """Return how many documents only one side selects, by what the other decided on them."""
    return _rows(
        connection,
        f"""
        SELECT coalesce({other}_stage, 'source') AS stage, coalesce({other}_reason, '{NOT_THERE}') AS reason,
               count(*) AS documents
        FROM compared WHERE {chosen}_chosen AND NOT {other}_chosen GROUP BY ALL ORDER BY documents DESC, stage, reason
        """,  # noqa: S608 - names of our own
    )


def _groups(connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    return _rows(
        connection,
        """
        SELECT by_group AS "group", count(*) FILTER (a_chosen) AS a, count(*) FILTER (b_chosen) AS b,
               count(*) FILTER (b_chosen AND NOT a_chosen) AS entered,
               count(*) FILTER (a_chosen AND NOT b_chosen) AS "left"
        FROM compared GROUP BY by_group HAVING a + b > 0 ORDER BY entered + "left" DESC, by_group
        """,
    )


def _drift(connection: duckdb.DuckDBPyConnection, place: int) -> dict[str, Any]:
    """Return how a score differs, over the documents that both sides score; and its means over what each selects."""
    [row] = _rows(
        connection,
        f"""
        WITH common AS (
            SELECT a, b, rank() OVER (ORDER BY a) AS rank_a, rank() OVER (ORDER BY b) AS rank_b
            FROM (SELECT a_score_{place} AS a, b_score_{place} AS b FROM compared) WHERE a IS NOT NULL AND b IS NOT NULL
        )
        SELECT count(*) AS documents, avg(a) AS a, avg(b) AS b, avg(b - a) AS difference,
               stddev_pop(b - a) AS deviation, max(abs(b - a)) AS largest,
               CASE WHEN stddev_pop(rank_a) * stddev_pop(rank_b) > 0 THEN corr(rank_a, rank_b) END AS rank_correlation,
               (SELECT avg(a_score_{place}) FROM compared WHERE a_chosen) AS a_selected,
               (SELECT avg(b_score_{place}) FROM compared WHERE b_chosen) AS b_selected
        FROM common
        """,  # noqa: S608 - numbers of our own
    )
    return row


def _steps(connection: duckdb.DuckDBPyConnection, sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return how many documents each side drops, by stage and reason; of ingest, as its files count them."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for name, side in zip("ab", sides, strict=True):
        rows = connection.execute(
            f"SELECT stage, reason, count(*) FROM {name} WHERE stage <> 'ingest' AND NOT chosen GROUP BY ALL"  # noqa: S608
        ).fetchall()
        for key, documents in {**{(stage, reason): n for stage, reason, n in rows}, **side.drops()}.items():
            counts.setdefault(key, {"a": 0, "b": 0})[name] = documents
    order = {"ingest": 0, "dedup": 1, "select": 2}
    return [
        {"stage": stage, "reason": reason, **counts[stage, reason]}
        for stage, reason in sorted(counts, key=lambda key: (order.get(key[0], 3), key))
    ]


EXAMPLES_OF = {
    "selected": """
        SELECT CASE WHEN b_chosen THEN 'entered' ELSE 'left' END AS kind,
               CASE WHEN b_chosen THEN a_stage ELSE b_stage END AS stage,
               CASE WHEN b_chosen THEN a_reason ELSE b_reason END AS reason, *
        FROM compared WHERE a_chosen <> b_chosen
        QUALIFY row_number() OVER (PARTITION BY kind, stage, reason ORDER BY md5(id)) <= $n
        """,
    "drifted": """
        SELECT 'drifted' AS kind, 'score' AS stage, 'largest changes of the quality' AS reason, *
        FROM compared WHERE a_score_0 <> b_score_0 ORDER BY abs(b_score_0 - a_score_0) DESC, id LIMIT $n
        """,
    "rewritten": """
        SELECT 'rewritten' AS kind, 'ingest' AS stage, 'another text' AS reason, *
        FROM compared WHERE a_chosen AND b_chosen AND a_content_hash <> b_content_hash ORDER BY md5(id) LIMIT $n
        """,
}
"""Queries of examples of every kind of change: drawn by hashes of the ids, or those whose quality changes most."""


def _examples(connection: duckdb.DuckDBPyConnection, sides: Sequence[Side]) -> list[dict[str, Any]]:
    """Return examples of every kind of change, with the beginnings of their texts."""
    rows = [row for query in EXAMPLES_OF.values() for row in _rows(connection, query, n=EXAMPLES)]
    texts = dict[tuple[str, int, int], str]()
    for row in rows:
        row["own"] = "b" if row["b_chosen"] or (not row["a_chosen"] and row["b_row"] is not None) else "a"
    for name, side in zip("ab", sides, strict=True):
        of_side = (row for row in rows if row["own"] == name and row[f"{name}_row"] is not None)
        places = {(row[f"{name}_shard"], row[f"{name}_row"]) for row in of_side}
        texts |= {(name, *place): text for place, text in side.texts(sorted(places)).items()}
    found = [
        {
            "kind": row["kind"],
            "stage": row["stage"] or "source",
            "reason": row["reason"] or NOT_THERE,
            **{name: row[name] for name in ("id", "url")},
            "group": row["by_group"],
            "quality": [row["a_score_0"], row["b_score_0"]],
            "text": row[f"{own}_beginning"] or texts.get((own, row[f"{own}_shard"], row[f"{own}_row"]), ""),
        }
        for row in rows
        for own in [row["own"]]
    ]
    return sorted(found, key=lambda one: (one["kind"], one["stage"], one["reason"]))


FATE_COLUMNS = (Column("stage"), Column("reason"), Column("documents", "count"))
SHOWN_KINDS = 6
"""Stages and reasons of which documents are shown, those of most documents first."""


def difference_page(found: Mapping[str, Any]) -> Page:
    """Return the page of what `compare` found."""
    a, b, by = found["a"], found["b"], found["by"]
    verdict = f"{found['changed']:.1%} of the documents that either selects are not in both"
    limit = "" if found["tolerance"] is None else f" (tolerance {found['tolerance']:.1%})"
    changes = [_change_table(found, "entered", a["name"]), _change_table(found, "left", b["name"])]
    sections = [
        Section("What changed", tables=[table for table in changes if table.rows]),
        Section(f"By {by}", tables=[_group_table(found)] if found["groups"] else []),
        Section("Scores", (DRIFT,), tables=_drift_tables(found)),
        Section("What every step drops", tables=_step_tables(found)),
        Section("Documents that entered", sides=_cards(found, "entered")),
        Section("Documents that left", sides=_cards(found, "left")),
        Section("Documents whose quality changed most", sides=_cards(found, "drifted")),
        Section("The same id, another text", sides=_cards(found, "rewritten")),
    ]
    return Page(
        title=f"{a['name']} → {b['name']}",
        lead=f"{verdict}{limit}. Documents are the same if their ids are.",
        tiles=[
            Tile(f"{a['selected']:,}", "selected before"),
            Tile(f"{b['selected']:,}", "selected after"),
            Tile(f"{found['entered']:,}", "entered"),
            Tile(f"{found['left']:,}", "left"),
            Tile(f"{found['changed']:.1%}", "changed"),
        ],
        findings=[Finding(f"{verdict}: more than the tolerance.", sections[0].title, is_worry=True)]
        if found["is_above"]
        else [],
        sections=[one for one in sections if one.tables or one.sides],
        metrics=found,
    )


DRIFT = (
    "Over the documents that both score: the mean before and after, the mean and the standard deviation of the change, "
    "and the rank correlation; then the means over what each selects."
)


NOTE = (
    "source, not in it: the source has no such document, or ingest dropped it and wrote nothing down "
    "(ingest.keep_dropped does)."
)


def _change_table(found: Mapping[str, Any], kind: str, other: str) -> Table:
    rows = [[one["stage"], one["reason"], one["documents"]] for one in found[f"{kind}_by"]]
    return Table(f"{kind.capitalize()}, by what {other} decided on them", FATE_COLUMNS, rows, note=NOTE)


def _cards(found: Mapping[str, Any], kind: str) -> list[Cards]:
    """Return the examples of one kind of change, in a column for each stage and reason."""
    order = [(one["stage"], one["reason"]) for one in found.get(f"{kind}_by", [])]
    shown: dict[tuple[str, str], list[Card]] = {key: [] for key in order[:SHOWN_KINDS]}
    for one in found["examples"]:
        key = (one["stage"], one["reason"])
        if one["kind"] == kind and (key in shown or not order):
            shown.setdefault(key, []).append(Card(one["url"] or one["id"], _note(one), one["text"]))
    return [Cards(f"{stage}: {reason}", cards) for (stage, reason), cards in shown.items() if cards]


def _note(one: Mapping[str, Any]) -> str:
    before, after = (None if value is None else f"{value:.2f}" for value in one["quality"])
    if before is not None and after is not None and before != after:
        return f"quality {before} → {after}"
    return "" if (known := before or after) is None else f"quality {known}"


def _group_table(found: Mapping[str, Any]) -> Table:
    columns = [Column(found["by"]), *(Column(name, "count") for name in ("before", "after", "entered", "left"))]
    rows = [
        [one["group"] or "(empty)", *(one[name] for name in ("a", "b", "entered", "left"))] for one in found["groups"]
    ]
    more = f" {len(rows) - GROUPS:,} more are in metrics.json." if len(rows) > GROUPS else ""
    return Table("Selected documents", columns, rows[:GROUPS], note=f"Those that change most first.{more}", wide=True)


DRIFT_COLUMNS = {
    "documents": "documents",
    "a": "before",
    "b": "after",
    "difference": "change",
    "deviation": "deviation",
    "rank_correlation": "rank correlation",
    "a_selected": "of selected before",
    "b_selected": "after",
}


def _drift_tables(found: Mapping[str, Any]) -> list[Table]:
    columns = [
        Column("score"),
        *(Column(label, "count" if name == "documents" else "number") for name, label in DRIFT_COLUMNS.items()),
    ]
    rows = [[one["score"], *(one[name] for name in DRIFT_COLUMNS)] for one in found["scores"] if one["documents"]]
    return [Table("Score drift", columns, rows, wide=True)] if rows else []


def _step_tables(found: Mapping[str, Any]) -> list[Table]:
    columns = [Column("stage"), Column("reason"), Column("before", "count"), Column("after", "count")]
    rows = [[one[name] for name in ("stage", "reason", "a", "b")] for one in found["steps"]]
    note = "Nothing is known of what a dataset left out."
    return (
        [Table("Documents that are not selected, by what left them out", columns, rows, note=note, wide=True)]
        if rows
        else []
    )
