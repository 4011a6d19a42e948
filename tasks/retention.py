"""Which share of the documents was selected: by dump, by length, by quality."""

from typing import Any

import duckdb

from tasks.dataset_rows import UNKNOWN, ShardFiles

QUALITY_BINS = 10_000


def retention_by_dump(connection: duckdb.DuckDBPyConnection, shards: list[ShardFiles]) -> list[dict[str, Any]]:
    """Return, per dump, how many documents were ingested and how many of them were selected.

    Parameters
    ----------
    connection
        A database with the tables of `SelectedDocuments`.
    shards
        The files of every shard, in the order of those tables.
    """
    rows = connection.execute(
        """
        SELECT coalesce(nullif(dump, ''), $unknown) AS dump, count(*) AS documents, count(chosen.row) AS selected
        FROM (SELECT row, dump, shard
              FROM read_parquet($documents, filename = 'documents_file', union_by_name = true)
              JOIN shards USING (documents_file)) AS documents
        LEFT JOIN chosen USING (shard, row)
        GROUP BY ALL ORDER BY ALL
        """,
        {"documents": [shard.documents for shard in shards], "unknown": UNKNOWN},
    ).fetchall()
    return [{"dump": dump, "documents": documents, "selected": selected} for dump, documents, selected in rows]


def retention_by_decile(
    connection: duckdb.DuckDBPyConnection, shards: list[ShardFiles]
) -> dict[str, list[dict[str, Any]]]:
    """Return, per tenth of the documents by length (characters) and by quality, how many were selected.

    Documents of one length, or of a quality that differs in the fourth digit of its range only, stay together, so
    tenths may be uneven: counting them needs no sorting of the whole corpus.
    """
    [(low, high)] = connection.execute(
        "SELECT min(quality), max(quality) FROM read_parquet($scores)", {"scores": [shard.scores for shard in shards]}
    ).fetchall()
    width = (high - low) / QUALITY_BINS if high is not None and high > low else 1.0
    of_quality = ("floor((quality - $low) / $width)", {"low": low or 0.0, "width": width})
    return {
        "length": _tenths(connection, [shard.documents for shard in shards], "n_chars", "n_chars", {}),
        "quality": _tenths(connection, [shard.scores for shard in shards], "quality", *of_quality),
    }


def _tenths(
    connection: duckdb.DuckDBPyConnection, files: list[str], column: str, bin_of: str, parameters: dict[str, float]
) -> list[dict[str, Any]]:
    bins = connection.execute(
        f"""
        SELECT min({column}), max({column}), count(*), count(chosen.row)
        FROM (SELECT shard, row, {column}
              FROM read_parquet($files, filename = 'file')
              JOIN (SELECT unnest($index)::UINTEGER AS shard, unnest($files) AS file) USING (file)) AS documents
        LEFT JOIN chosen USING (shard, row)
        GROUP BY {bin_of} ORDER BY min({column})
        """,  # noqa: S608 - column names of our own schemas only
        {"files": files, "index": list(range(len(files))), **parameters},
    ).fetchall()
    total = sum(documents for _, _, documents, _ in bins)
    tenths: dict[int, dict[str, Any]] = {}
    before = 0
    for low, high, documents, selected in bins:
        number = 10 * (2 * before + documents) // (2 * total)
        tenth = tenths.setdefault(number, {"from": low, "to": high, "documents": 0, "selected": 0})
        tenth["to"] = high
        tenth["documents"] += documents
        tenth["selected"] += selected
        before += documents
    return [{"decile": number + 1, **tenth} for number, tenth in tenths.items()]
