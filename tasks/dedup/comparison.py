"""Compare the documents of all shards in DuckDB, within its memory limit: what does not fit is spilled to disk.

Documents of equal text, of one URL, and of equal bands of signatures are found by joins. The bands are compared in
ranges of their keys, of which a shard's file has a few row groups each. Pairs that share a band are then compared
exactly, by the shingles of their texts, which are read again.

A document has a number: the place of its shard, in the order of arrival, * 2**32 + its row.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.dedup.choice import jaccard
from fineweb_mask.models.dedup.minhash import hash_of, shingle_sets
from fineweb_mask.models.documents import hash_halves
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings.source import CopiesSettings
from fineweb_mask.tasks.dedup.sketch import Documents, column_of
from fineweb_mask.tasks.selection.inputs.shard_documents import read_groups
from fineweb_mask.tasks.source.columns import BYTES_OF_ROW
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

ROW_BITS = 32
RANGE_KEYS = 50_000_000
"""Most keys of bands that are compared at once, about: 32 bytes each."""
READ_ROWS = 2_000_000
"""Most rows that are read before they are given to DuckDB, unless one shard has more."""
READERS = 16
"""Files that are read at the same time: at a URL, most of the time is spent waiting."""
SHINGLES_OF_TEXT = 500
"""About, by which it is told how many texts are read at once."""
VERIFIED_PAIRS = 4_096
"""Pairs whose shingles are compared at once."""
ADDRESS = r"(?s)^\s*(?:https?://)?(?:www\.)?([^#]*?)/?\s*(?:#.*)?$"
"""What is compared of a URL, as its first group."""
LAST = 2**ROW_BITS - 1
OWN = np.uint64(2**63)
"""Added to the rank of the documents of this corpus."""

REPEATS = """
    SELECT document, first AS better
    FROM hashes JOIN (SELECT high, low, min(document) AS first FROM hashes GROUP BY ALL HAVING count(*) > 1)
      USING (high, low)
    WHERE document > first
    """
"""The documents whose text an earlier one has, and the first of these."""

OF_ONE_URL = """
    SELECT document, first_value(document) OVER (PARTITION BY key ORDER BY rank, document) AS better
    FROM addresses ANTI JOIN repeats USING (document)
    QUALIFY document <> better AND document >= $first
    """
"""All documents of one URL but the preferred one, and that."""

BEST = 2
"""Documents that a band is shared with and that all others are compared with: those that would be kept first."""
NEIGHBOURS = 4
"""Documents that one is compared with of those just before it, in the order of the bands that follow."""
SHARED_BAND = f"""
    WITH compared AS MATERIALIZED (FROM bands ANTI JOIN repeats USING (document)), placed AS MATERIALIZED (
        SELECT key, document,
               row_number() OVER (PARTITION BY key ORDER BY rank, document) AS preference,
               row_number() OVER (PARTITION BY key ORDER BY next, rank, document) AS place
        FROM compared SEMI JOIN (SELECT key FROM compared GROUP BY key HAVING count(*) > 1) USING (key)
    ), pairs AS (
        SELECT one.document, other.document AS better
        FROM placed AS one JOIN (FROM placed WHERE preference <= {BEST}) AS other USING (key)
        WHERE one.preference > other.preference
        UNION
        SELECT CASE WHEN one.preference > other.preference THEN one.document ELSE other.document END,
               CASE WHEN one.preference > other.preference THEN other.document ELSE one.document END
        FROM placed AS one
        JOIN (SELECT *, place + unnest(range(1, {NEIGHBOURS + 1})) AS after FROM placed) AS other
          ON one.key = other.key AND one.place = other.after
    )
    FROM pairs WHERE document >= $first
    """  # noqa: S608 - numbers of our own
"""Pairs of documents that share a band: a bounded number for each, however many share it."""

PAIRS = pa.schema([("document", pa.uint64()), ("better", pa.uint64()), ("similarity", pa.float32())])
"""Pairs of copies, of which `better` is to be kept rather; the similarity of pages of one URL is null."""
SETS = pa.schema([("document", pa.uint64()), ("shingles", pa.list_(pa.uint64()))])
SHINGLES = """
    SELECT document, better, one.shingles AS own, other.shingles AS others
    FROM pairs JOIN sets AS one USING (document) JOIN sets AS other ON other.document = better
    """


@dataclass
class Comparison:
    """The documents that are compared, and the database in which they are.

    What it finds first is in the table `repeats`: the documents of equal text, which are not compared again.
    """

    connection: duckdb.DuckDBPyConnection
    workspace: Workspace
    shards: Sequence[Documents]  # files of other corpora first, which are preferred and never dropped
    copies: CopiesSettings

    def __post_init__(self) -> None:
        """Begin without repeats."""
        self.connection.execute(
            "SET preserve_insertion_order = false; CREATE TABLE repeats (document UBIGINT, better UBIGINT)"
        )

    def find_repeats(self) -> None:
        """Enter the documents of this corpus whose text an earlier one has."""
        self._enter("hashes", "high UBIGINT, low UBIGINT, document UBIGINT", self._rows, self._hashes)
        self.connection.execute(f"INSERT INTO repeats {REPEATS}; DROP TABLE hashes")

    def of_one_url(self) -> pa.Table:
        """Return all documents of one URL but the preferred one, with that."""
        self._enter("addresses", "key UBIGINT, rank UBIGINT, document UBIGINT", self._rows, self._addresses)
        found = self.connection.sql(OF_ONE_URL, params=self._first).to_arrow_table()
        self.connection.execute("DROP TABLE addresses")
        return found.append_column("similarity", pa.nulls(len(found), pa.float32())).cast(PAIRS)

    def alike(self, signatures: Sequence[StageFile], words: int, least: float) -> pa.Table:
        """Return the pairs that share a band and at least so much of their shingles, of so many `words`."""
        rows = [file.rows for file in signatures]
        ranges = 2 ** max(0, math.ceil(math.log2(max(1, sum(rows)) / RANGE_KEYS)))
        sizes, fields = [own / ranges for own in rows], "key UBIGINT, next UBIGINT, rank UBIGINT, document UBIGINT"
        self.connection.execute("CREATE TABLE pairs (document UBIGINT, better UBIGINT)")
        for number in track("ranges of keys", range(ranges), part=(0, 0.5)):
            ends = [number * 2**64 // ranges, (number + 1) * 2**64 // ranges - 1]
            self._enter("bands", fields, sizes, partial(self._bands, signatures, ends))
            self.connection.execute(f"INSERT INTO pairs {SHARED_BAND}", self._first)
        self.connection.execute("DROP TABLE bands; CREATE OR REPLACE TABLE pairs AS SELECT DISTINCT * FROM pairs")
        both = "SELECT DISTINCT unnest([document, better]) AS document FROM pairs ORDER BY document"
        needed = self.connection.sql(both).to_arrow_table()["document"].to_numpy()
        of_shards = np.split(needed, np.searchsorted(needed >> ROW_BITS, range(1, len(self.shards))))
        sizes = [SHINGLES_OF_TEXT * len(documents) for documents in of_shards]
        self._enter("sets", "document UBIGINT, shingles UBIGINT[]", sizes, partial(self._shingles, of_shards, words))
        found = [PAIRS.empty_table()]
        for batch in self.connection.sql(SHINGLES).to_arrow_reader(VERIFIED_PAIRS):
            raise_if_stopped()
            similarity = jaccard(batch["own"], batch["others"])
            pairs = pa.table([batch["document"], batch["better"], similarity], schema=PAIRS)
            found.append(pairs.filter(pa.array(similarity >= least)))
        return pa.concat_tables(found)

    @property
    def _first(self) -> dict[str, int]:
        """The number of this corpus's first document."""
        return {"first": sum(not isinstance(one, StageFile) for one in self.shards) << ROW_BITS}

    @property
    def _rows(self) -> list[int]:
        return [one.rows if isinstance(one, StageFile) else one.bytes // BYTES_OF_ROW for one in self.shards]

    def _enter(self, table: str, fields: str, sizes: Sequence[float], read: Callable[[int], pa.Table]) -> None:
        """Write what is read of each shard into a new table; `sizes` are the rows of each, about."""
        self.connection.execute(f"CREATE OR REPLACE TABLE {table} ({fields})")
        with ThreadPoolExecutor(READERS) as pool:
            for places in track(f"shards' {table}", list(runs(sizes, READ_ROWS))):
                self.connection.from_arrow(pa.concat_tables(pool.map(read, places))).insert_into(table)

    def _hashes(self, place: int) -> pa.Table:
        documents = self.shards[place]
        if not isinstance(documents, StageFile):  # of those, ingest drops the copies
            return pa.table({name: pa.array([], pa.uint64()) for name in ("high", "low", "document")})
        rows = read_table(self.workspace.resolve(documents), columns=["row", "content_hash"]).combine_chunks()
        high, low = hash_halves(rows["content_hash"].combine_chunks())
        return pa.table({"high": high, "low": low, "document": numbers(place, rows["row"].to_numpy())})

    def _addresses(self, place: int) -> pa.Table:
        rows, hashes = [np.empty(0, np.uint32)], [np.empty(0, np.uint64)]
        for batch in column_of(self.workspace, self.shards[place], "url"):
            addresses = pc.replace_substring_regex(batch["url"], ADDRESS, r"\1")
            has_one = pc.fill_null(pc.not_equal(addresses, ""), False)
            rows.append(batch["row"].filter(has_one).to_numpy())
            hashes.append(np.fromiter(map(hash_of, addresses.filter(has_one).to_pylist()), np.uint64))
        return self._ranked(place, np.concatenate(rows), key=np.concatenate(hashes))

    def _bands(self, signatures: Sequence[StageFile], ends: Sequence[int], place: int) -> pa.Table:
        first, last = (pa.scalar(end, pa.uint64()) for end in ends)
        is_inside = (pc.field("key") >= first) & (pc.field("key") <= last)
        rows = read_table(self.workspace.resolve(signatures[place]), filters=is_inside)
        return self._ranked(place, rows["row"].to_numpy(), key=rows["key"], next=rows["next"])

    def _shingles(self, of_shards: Sequence[NDArray[np.uint64]], words: int, place: int) -> pa.Table:
        rows = (of_shards[place] & LAST).astype(np.uint32)
        found = [pa.table({"document": [], "shingles": []}, schema=SETS)]
        for batch in column_of(self.workspace, self.shards[place], "text") if len(rows) else ():
            needed = batch.filter(pc.is_in(batch["row"], pa.array(rows)))
            sets = shingle_sets(needed["text"], words)
            found.append(pa.table([numbers(place, needed["row"].to_numpy()), sets], schema=SETS))
        return pa.concat_tables(found)

    def _ranked(self, place: int, rows: NDArray[np.uint32], **columns: object) -> pa.Table:
        """Return columns of rows with the rank of each, of which the least is kept, and the number of the document.

        A document that lacks a column of the settings has no value there. Those that are exempt are left out.
        """
        documents, copies = self.shards[place], self.copies
        rank, is_compared = np.zeros(len(rows), dtype=np.uint64), np.ones(len(rows), dtype=bool)
        if isinstance(documents, StageFile):
            rank += OWN
            if copies.keep == "longest":
                lengths = read_table(self.workspace.resolve(documents), columns=["n_chars"])["n_chars"].to_numpy()
                rank += LAST - lengths[rows].astype(np.uint64)
            for column in {**copies.prefer, **copies.exempt}:
                groups = read_groups(self.workspace, ShardFiles(documents=documents), column)[rows]
                values = pa.array(groups, pa.string())
                if best := copies.prefer.get(column):
                    places = pc.fill_null(pc.index_in(values, value_set=pa.array(best, pa.string())), len(best))
                    rank += places.to_numpy().astype(np.uint64) << ROW_BITS
                exempt = pa.array(copies.exempt.get(column, []), pa.string())
                is_compared &= ~pc.is_in(values, exempt).to_numpy(zero_copy_only=False)
        table = pa.table({**columns, "rank": rank, "document": numbers(place, rows)})
        return table if is_compared.all() else table.filter(pa.array(is_compared))


def numbers(place: int, rows: NDArray[np.uint32]) -> NDArray[np.uint64]:
    """Return the numbers of rows of the shard at a place in the order of arrival, (n,).

    >>> numbers(2, np.array([0, 7], dtype=np.uint32)).tolist() == [2 * 2**32, 2 * 2**32 + 7]
    True
    """
    return rows.astype(np.uint64) + (np.uint64(place) << ROW_BITS)


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
