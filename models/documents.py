"""Turn source rows into documents: cast columns, filter rows, fill in ids, hashes and lengths.

Works on one Arrow record batch at a time, without files.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.columns import finite, holds_strings, is_text, kept, read_as_text, value_at
from fineweb_mask.models.schemas import DROPPED, FINEWEB, MEASURED, SOURCE_ROW, documents_schema, dropped_schema
from fineweb_mask.models.settings import IngestSettings

CHARS_PER_TOKEN = 4.6
"""Mean for English web text under the GPT-2 vocabulary. Used only for documents without a token count."""

MOST_TOKENS = 2**31 - 1
"""Most tokens of one document; the sum over a shard, of less than 2^32 rows, is below 2^63."""

MADE_ID = "fineweb-mask:"
"""What the ids begin with that are made for documents without one."""

TextFilter = Callable[[Sequence[str], Sequence[str | None]], Sequence[tuple[str, str | None]]]
"""Takes texts and their URLs; returns each text, which it may have changed, and why it is dropped, or None."""

CONTENT_HASH = MEASURED.field("content_hash")
LONGEST_VALUE = 200
"""Characters of a value of the source's own columns that are kept of a dropped row."""


def content_hash(text: str) -> bytes:
    """Return the 16-byte BLAKE2b hash of a text, ignoring case and the amount of white space."""
    return hashlib.blake2b(" ".join(text.lower().split()).encode(), digest_size=16).digest()


def hash_halves(hashes: pa.FixedSizeBinaryArray) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the first and the last 8 bytes of hashes as numbers, whose order is that of the bytes: (n,) uint64 each.

    Examples
    --------
    >>> high, low = hash_halves(pa.array([bytes(7) + b"2" + bytes(8)], pa.binary(16)))
    >>> int(high[0]), int(low[0])
    (50, 0)
    """
    numbers = np.frombuffer(hashes.buffers()[1] or b"", dtype=">u8").reshape(-1, 2).astype(np.uint64)
    numbers = numbers[hashes.offset : hashes.offset + len(hashes)]
    return np.ascontiguousarray(numbers[:, 0]), np.ascontiguousarray(numbers[:, 1])


def stable_id(source: str, source_row: int) -> str:
    """Return the id for a document without one: a hash of its source file's name and its row in that file."""
    digest = hashlib.blake2b(f"{source}\n{source_row}".encode(), digest_size=16).hexdigest()
    return f"{MADE_ID}{digest}"


def conform(
    batch: pa.RecordBatch,
    places: Mapping[str, Sequence[str]],
    extra: Iterable[pa.Field],
    lost: Counter[str] | None = None,
) -> pa.RecordBatch:
    """Return a batch with FineWeb's nine columns in FineWeb's types, then the `extra` columns.

    `places` has the names that lead to a column in the batch, where they are others. Missing columns become null,
    others are left out. Values that do not fit become null, and are counted as `lost`. Bytes in a column of FineWeb's
    are taken for text.
    """
    lost = Counter() if lost is None else lost
    fields, columns = [*FINEWEB, *extra], []
    for one in fields:
        place, gone = places.get(one.name, (one.name,)), 0
        if place[0] not in batch.schema.names:
            values = pa.nulls(batch.num_rows, one.type)
        else:
            values = value_at(batch, place)
            is_of_text = one in FINEWEB and pa.types.is_string(one.type) and is_text(values.type)
            values, gone = (read_as_text(values), 0) if is_of_text else kept(values, one.type)
        columns.append(values)
        lost.update({one.name: gone} if gone else {})
    return pa.record_batch(columns, schema=pa.schema(fields))


@dataclass(eq=False)
class DocumentFilter:
    """Filter the rows of one shard and count the dropped rows by their first reason.

    `source` is the name of the source file, from which missing ids are derived. `copies` returns, for the hash of each
    text, the id of the document of another corpus that has it, or None; such rows are dropped, and it is their `twin`.
    So are those for whose text `overlaps` returns the name of an item of a benchmark.
    `write_dropped` takes dropped rows, as `dropped_schema` has them.

    Examples
    --------
    >>> documents = DocumentFilter(IngestSettings(min_chars=5), "shard.parquet")
    >>> batch = pa.record_batch({"text": ["some text", "tiny", "SOME  text"]})
    >>> documents.apply(conform(batch, {}, []))["text"].to_pylist()
    ['some text']
    >>> {reason: count for reason, count in documents.dropped.items() if count}
    {'too_short': 1, 'duplicate': 1}
    """

    settings: IngestSettings
    source: str
    copies: Callable[[list[bytes]], list[str | None]] | None = None
    text_filter: TextFilter | None = None
    overlaps: Callable[[list[str]], list[str | None]] | None = None
    write_dropped: Callable[[pa.RecordBatch], object] = lambda _: None
    dropped: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)  # numbers that cannot be those of a document, by column
    rows_in: int = 0
    rows_kept: int = 0
    tokens_in: int = 0
    tokens_kept: int = 0
    tokens_estimated: int = 0  # kept rows with a token count estimated from the length
    _seen: set[bytes] = field(default_factory=set)

    def apply(self, batch: pa.RecordBatch, problems: pa.Array | None = None) -> pa.RecordBatch:
        """Return the kept rows of a batch, with `row`, `source_row`, `id`, `n_chars` and `content_hash` filled in.

        The batch holds the next n rows of the source file, as `conform` returns them. `problems`, (n,) strings, is the
        reason why a row could not be read and is dropped, null for a good row.
        """
        batch = self._with_numbers(batch)
        self.tokens_in += int(token_counts(batch["token_count"], pc.utf8_length(batch["text"])).sum())
        source_rows = np.arange(self.rows_in, self.rows_in + batch.num_rows)
        self.rows_in += batch.num_rows
        batch = batch.append_column(SOURCE_ROW, pa.array(source_rows, SOURCE_ROW.type))
        if problems is not None:
            batch = self._drop(batch, problems.to_pylist())
        checks: tuple[tuple[str, Callable[[pa.RecordBatch], pa.Array]], ...] = (
            ("null_text", lambda rows: pc.is_null(rows["text"])),
            ("invalid_utf8", _invalid_utf8),
            ("empty_text", lambda rows: pc.equal(pc.utf8_length(pc.utf8_trim_whitespace(rows["text"])), 0)),
            ("too_short", lambda rows: pc.less(pc.utf8_length(rows["text"]), self.settings.min_chars)),
            ("wrong_language", self._wrong_language),
            ("low_language_score", lambda rows: pc.less(rows["language_score"], self.settings.min_language_score)),
        )
        for reason, bad in checks:
            batch = self._drop_if(batch, pc.fill_null(bad(batch), False).to_pylist(), reason)
        if self.text_filter is not None:
            batch = self._filter_texts(self.text_filter, batch)
        if self.overlaps is not None:
            batch = self._drop_twins(batch, self.overlaps(batch["text"].to_pylist()), "benchmark")
        hashes = self._hashes(batch["text"])
        batch = batch.append_column(CONTENT_HASH, pa.array(hashes, CONTENT_HASH.type))
        if self.copies is not None:
            batch = self._drop_twins(batch, self.copies(hashes), "known")
        if self.settings.exact_dedup != "off":
            batch = self._drop_if(batch, map(self._was_seen, batch["content_hash"].to_pylist()), "duplicate")
        return self._finish(batch)

    def _with_numbers(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch with null for fractions that are not finite, and for what cannot be a number of tokens."""
        fractions = {
            field.name: finite(batch[field.name]) for field in batch.schema if pa.types.is_floating(field.type)
        }
        tokens = batch["token_count"]
        fits = pc.and_(pc.greater_equal(tokens, 0), pc.less_equal(tokens, MOST_TOKENS))
        known = pc.if_else(fits, tokens, pa.scalar(None, tokens.type))
        self.lost["token_count"] += known.null_count - tokens.null_count
        return _with(batch, **fractions, token_count=known)

    def _drop_if(self, batch: pa.RecordBatch, is_bad: Iterable[bool], reason: str) -> pa.RecordBatch:
        return self._drop(batch, [reason if bad else None for bad in is_bad])

    def _drop(
        self, batch: pa.RecordBatch, reasons: Sequence[str | None], twins: Sequence[str | None] | None = None
    ) -> pa.RecordBatch:
        """Return the rows without a reason; count the others, and write them."""
        self.dropped.update(reason for reason in reasons if reason is not None)
        is_kept = pa.array([reason is None for reason in reasons], pa.bool_())
        if pc.all(is_kept).as_py() in {True, None}:
            return batch
        is_gone = pc.invert(is_kept)
        why = {"reason": reasons, "twin": twins or [None] * len(reasons)}
        decided = {name: pa.array(values, pa.string()).filter(is_gone) for name, values in why.items()}
        self.write_dropped(self._dropped_rows(batch.filter(is_gone), decided))
        return batch.filter(is_kept)

    def _dropped_rows(self, batch: pa.RecordBatch, decided: Mapping[str, pa.Array]) -> pa.RecordBatch:
        """Return dropped rows with what was decided and readable values; those of the source's own columns are cut."""
        schema = dropped_schema([field for field in batch.schema if field.name != CONTENT_HASH.name])
        columns = dict(decided)
        for name, kind in zip(schema.names, schema.types, strict=True):
            if name not in columns:
                columns[name] = batch[name]
                if holds_strings(kind):
                    invalid = _invalid_utf8(batch.select([name]))
                    columns[name] = pc.if_else(invalid, pa.scalar(None, kind), batch[name])
                    if name not in DROPPED.names:
                        columns[name] = pc.utf8_slice_codeunits(columns[name], 0, LONGEST_VALUE)
        columns["id"] = self._ids(columns["id"], columns["source_row"])
        if not self.settings.keep_dropped:
            columns["text"] = pa.nulls(batch.num_rows, pa.string())
        return pa.record_batch(columns, schema=schema)

    def _ids(self, ids: pa.Array, source_rows: pa.Array) -> pa.Array:
        """Return ids, with stable ones for those that are missing."""
        both = zip(ids.to_pylist(), source_rows.to_pylist(), strict=True)
        return pa.array([own or stable_id(self.source, row) for own, row in both], pa.string())

    def _filter_texts(self, text_filter: TextFilter, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows whose texts the filter keeps; one that it changed no longer has a known token count."""
        before = batch["text"].to_pylist()
        found = text_filter(before, batch["url"].to_pylist())
        texts = [text for text, _ in found]
        reasons = [
            "too_short" if reason is None and len(text) < self.settings.min_chars else reason for text, reason in found
        ]
        is_changed = pa.array([text != old for text, old in zip(texts, before, strict=True)], pa.bool_())
        tokens = pc.if_else(is_changed, pa.scalar(None, pa.int64()), batch["token_count"])
        return self._drop(_with(batch, text=pa.array(texts, pa.string()), token_count=tokens), reasons)

    def _hashes(self, texts: pa.StringArray) -> list[bytes]:
        """Return the hash of each text; of equal ones in a batch, the first is normalised."""
        encoded = texts.dictionary_encode()
        distinct = [content_hash(text.as_py()) for text in encoded.dictionary]
        return [distinct[index] for index in encoded.indices.to_pylist()]

    def _drop_twins(self, batch: pa.RecordBatch, twins: Sequence[str | None], reason: str) -> pa.RecordBatch:
        """Return the rows without a twin."""
        return self._drop(batch, [None if twin is None else reason for twin in twins], twins)

    def _wrong_language(self, batch: pa.RecordBatch) -> pa.Array:
        if not self.settings.languages:
            return pa.array(np.zeros(batch.num_rows, dtype=bool))
        known = pc.is_in(batch["language"], value_set=pa.array(self.settings.languages, pa.string()))
        return pc.and_(pc.is_valid(batch["language"]), pc.invert(known))

    def _was_seen(self, value: bytes) -> bool:
        before = len(self._seen)
        self._seen.add(value)
        return len(self._seen) == before

    def _finish(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = np.arange(self.rows_kept, self.rows_kept + batch.num_rows, dtype=np.uint32)
        self.rows_kept += batch.num_rows
        n_chars = pc.utf8_length(batch["text"]).cast(pa.uint32())
        self.tokens_kept += int(token_counts(batch["token_count"], n_chars).sum())
        self.tokens_estimated += batch["token_count"].null_count
        batch = _with(batch, id=self._ids(batch["id"], batch["source_row"]))
        batch = batch.append_column("row", pa.array(rows)).append_column("n_chars", n_chars)
        own = documents_schema()
        schema = documents_schema([field for field in batch.schema if field.name not in own.names])
        return pa.record_batch([batch[name] for name in schema.names], schema=schema)


def _with(batch: pa.RecordBatch, **columns: pa.Array) -> pa.RecordBatch:
    """Return a batch with other values in some columns."""
    for name, values in columns.items():
        batch = batch.set_column(batch.schema.get_field_index(name), batch.schema.field(name), values)
    return batch


def _invalid_utf8(batch: pa.RecordBatch) -> pa.Array:
    """Return (n,) booleans: true for a row with a string that is not UTF-8, which Arrow does not check itself."""
    invalid = np.zeros(batch.num_rows, dtype=bool)
    for column in batch.columns:
        if holds_strings(column.type):
            try:
                column.validate(full=True)
            except pa.ArrowInvalid:
                invalid |= np.array([not _decodes(value) for value in column], dtype=bool)
    return pa.array(invalid)


def _decodes(value: pa.Scalar) -> bool:
    try:
        value.as_py()
    except UnicodeDecodeError:
        return False
    return True


def token_counts(token_count: pa.Array | pa.ChunkedArray, length: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return each document's number of tokens, (n,): its `token_count`, else an estimate from its length, else 0."""
    estimate = pc.cast(pc.ceil(pc.divide(pc.cast(length, pa.float64()), CHARS_PER_TOKEN)), pa.int64())
    return np.asarray(pc.fill_null(pc.coalesce(token_count, estimate), 0))
