"""Read a source file of any format as batches of Arrow columns."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.columns import KEPT_TYPES, is_text, kept_values, locate
from fineweb_mask.models.documents import conform
from fineweb_mask.models.names import alike, find, inside
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.processes.texts import with_texts
from fineweb_mask.tasks.source.columns import ColumnError, extra_columns, keys_read, read_columns, settle
from fineweb_mask.tasks.source.discovery import LARGEST_DOCUMENT, SourceShard, fingerprint_of
from fineweb_mask.tasks.source.jsonl import Record, jsonl_records
from fineweb_mask.tasks.source.opening import PACKED, broken_files, open_parquet_source
from fineweb_mask.tasks.source.warc import warc_records
from fineweb_mask.tasks.storage.remote.errors import attempt
from fineweb_mask.tasks.storage.remote.filesystem import invalidate_listing, open_filesystem
from fineweb_mask.tasks.workspace.job import BadShardError

BATCH_ROWS = 1_000
BATCH_BYTES = 64 * 2**20


class NoTextColumnError(BadShardError):
    """A file has no column of the name that the texts' has."""


class ShardReader:
    """Streams one source file as batches with FineWeb's nine columns, then the extra ones.

    Parameters
    ----------
    shard
        The file. If its columns are not settled, they are its own.
    settings
        Names of the text and id columns, and the extra columns to keep.

    Attributes
    ----------
    rows
        Number of rows in the file; of long JSON Lines and crawls, an estimate by the file's size.
    extra
        Arrow fields of the extra columns.
    lost
        Values that did not fit, so far, by column.
    keys_differ
        Rows read in which a column of the file holds another value than the key of that name in its path, by name.
    not_kept
        Names of columns that the file has, as far as it is read, and the documents do not.

    Raises
    ------
    BadShardError
        Here or while reading: if the file is damaged or changed, or a column is missing or of the wrong type.
    """

    largest = LARGEST_DOCUMENT

    def __init__(self, shard: SourceShard, settings: SourceSettings) -> None:
        self.shard = shard
        self.settings = settings
        self.lost: Counter[str] = Counter()
        self.keys_differ: Counter[str] = Counter()
        self.not_kept: set[str] = set()
        self._rows_read = 0
        self._filesystem, self._path = open_filesystem(shard.url)
        self._fingerprint = self._current_fingerprint()
        if self._fingerprint != shard.fingerprint:
            raise self._error("the file changed after the run started; run again")
        with broken_files(self._error):
            known = read_columns(shard, self.largest)
        self.rows, names, text = known.rows, known.schema.names, settings.text_column
        is_empty = shard.format == "jsonl" and known.is_counted and not known.rows  # without any row, no columns
        if not names and not is_empty:
            raise self._error(f"none of its first {known.rows:,} rows can be read")
        if twice := [name for name, times in Counter(names).items() if times > 1]:
            raise self._error(f"column {twice[0]!r} exists more than once")
        kind = locate(text, known.schema)[1]
        if known.is_counted and not is_empty and kind is None:
            problem = f"no column {text!r}, set source.text_column to one of {names}"
            raise NoTextColumnError(f"{shard.relative}: {problem}")
        if shard.format == "parquet" and kind is not None and not is_text(kind):
            raise self._error(f"column {text!r} must hold text, its type is {kind}")
        try:
            own = [column.name for column in extra_columns(known.schema, settings)]
            if shard.columns is None:
                [shard] = settle([shard], settings, files=[(shard, known)])
        except ColumnError as error:
            raise self._error(error) from error
        self.extra = [pa.field(name, KEPT_TYPES[kind]) for name, kind in shard.columns or ()]
        asked = {"text": text, "id": settings.id_column}
        self._own_names = {one.name: asked.get(one.name, one.name) for one in (*FINEWEB, *self.extra)}
        self._places = {name: locate(own, known.schema)[0] for name, own in self._own_names.items()}
        self._note_others(own)

    def _note_others(self, names: Iterable[str]) -> None:
        """Take down the names of columns that are not kept, if all are to be."""
        if self.settings.extra_columns == "all":
            kept = {alike(name) for names in self._own_names.items() for name in names}
            self.not_kept.update(name for name in names if alike(name) not in kept)

    def _current_fingerprint(self) -> str:
        invalidate_listing(self._filesystem, self._path)
        with broken_files(self._error):
            info = attempt(self.shard.url, self._filesystem.info, self._path)
        if info["type"] != "file":
            raise self._error("this is a pipe, a socket or a device, or a link to one: it must be a file")
        if not info["size"] and self.shard.relative.lower().endswith(PACKED):
            raise self._error("the file has 0 bytes: it is cut off")
        return fingerprint_of(info)

    def _check_unchanged(self) -> None:
        if self._current_fingerprint() != self._fingerprint:
            raise self._error("the file changed while it was read; run again")

    def _error(self, reason: object) -> BadShardError:
        place = f" after row {self._rows_read:,}" if self._rows_read else ""
        return BadShardError(f"{self.shard.relative}{place}: {reason}")

    def _error_or_change(self, error: Exception) -> BadShardError:
        self._check_unchanged()
        return self._error(error)

    def batches(self) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        """Yield batches in file order, each with a string column of problems (null: none).

        A batch has at most 1,000 rows and, but for its last row, about 64 MiB.
        """
        with broken_files(self._error_or_change):
            for batch, problems in self._parquet() if self.shard.format == "parquet" else self._records():
                yield self._with_keys(batch), problems
                self._rows_read += batch.num_rows
            self._check_unchanged()

    def _parquet(self) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        with open_parquet_source(self.shard.url) as file:
            wanted = {place[0] for place in self._places.values()}
            columns = [name for name in file.schema_arrow.names if name in wanted]
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            largest = max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)
            for batch in file.iter_batches(max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, largest))), columns=columns):
                rows = conform(batch, self._places, self.extra, self.lost)
                is_large = pc.greater(pc.binary_length(rows["text"]), self.largest)
                yield rows, pc.if_else(is_large, "too_large", pa.scalar(None, pa.string()))

    def _records(self) -> Iterator[tuple[pa.RecordBatch, pa.Array]]:
        read = warc_records(self.shard, self.largest) if self.shard.format == "warc" else None
        records = with_texts(read) if read else jsonl_records(self.shard.url, self.shard.relative, self.largest)
        pending, size = list[Record](), 0
        for record in records:
            pending.append(record)
            if isinstance(record, dict):
                size += sum(len(value) for value in record.values() if isinstance(value, str))
            if len(pending) == BATCH_ROWS or size >= BATCH_BYTES:
                yield self._batch(pending)
                pending, size = [], 0
        yield self._batch(pending)

    def _batch(self, records: Sequence[Record]) -> tuple[pa.RecordBatch, pa.Array]:
        """Return records in columns, and the problems of those that could not be read, or whose text is none."""
        rows = [record if isinstance(record, dict) else {} for record in records]
        keys = {key for row in rows for key in row}
        self._note_others(keys)
        fields, columns = [*FINEWEB, *self.extra], []
        problems = [record if isinstance(record, str) else None for record in records]
        for field in fields:
            own = self._own_names[field.name]
            is_plain = "." not in own and all(key == own or alike(key) != alike(own) for key in keys)
            values = [row.get(own) if is_plain else inside(row, own) for row in rows]
            if field.name == "text":
                wrong = {place for place, value in enumerate(values) if not isinstance(value, str | None)}
                problems = ["wrong_type" if place in wrong else problem for place, problem in enumerate(problems)]
                values = [None if place in wrong else value for place, value in enumerate(values)]
            column, lost = kept_values(values, field.type)
            columns.append(column)
            self.lost.update({field.name: lost} if lost else {})
        return pa.record_batch(columns, schema=pa.schema(fields)), pa.array(problems, pa.string())

    def _with_keys(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch in which keys of the path stand where the file has no value."""
        for name, value in keys_read(self.shard, self.settings).items():
            own = find(name, batch.schema.names)
            if own is None or value is None:
                continue
            place = batch.schema.get_field_index(own)
            field, column = batch.schema.field(place), batch.column(place)
            try:
                key = pa.scalar(value).cast(field.type)
                self.keys_differ[own] += pc.sum(pc.not_equal(column, key)).as_py() or 0
                batch = batch.set_column(place, field, pc.fill_null(column, key))
            except pa.ArrowException:  # the column is of another type
                self.keys_differ[own] += len(column)
        return batch
