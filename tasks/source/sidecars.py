"""Find and read sidecars: files with annotations that others have made of the rows of each source file.

WebOrganizer ships a NumPy array for each file of documents, Dolma a file of JSON Lines
(https://github.com/allenai/dolma, "attributes"). Rows belong together by their ids, or without these by their place. A
sidecar is found by the path of the source file, and its size and date are in the key of the scores.
"""

import logging
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.columns import label, locate
from fineweb_mask.models.documents import MADE_ID
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.names import inside
from fineweb_mask.models.settings.quality import SHARD, SidecarScorerSettings
from fineweb_mask.tasks.source.discovery import (
    LARGEST_DOCUMENT,
    SourceShard,
    fingerprint_of,
    pin_commit,
    stem_of,
)
from fineweb_mask.tasks.source.jsonl import Record, jsonl_records
from fineweb_mask.tasks.source.opening import BROKEN_FILE_ERRORS, open_parquet_source
from fineweb_mask.tasks.storage.remote.errors import attempt, is_transient
from fineweb_mask.tasks.storage.remote.filesystem import open_filesystem, open_source
from fineweb_mask.tasks.workspace.job import BadShardError

SPAN, NAMED_IDS = 3, 3
"""Values of a span of Dolma, its start, its end and its score; and ids that a message names."""

logger = logging.getLogger(__name__)


class Sidecar(BaseModel):
    """The annotations of one source file."""

    model_config = ConfigDict(frozen=True)

    url: str
    fingerprint: str | None  # None: there is no such file
    id_names: tuple[str, ...] = ("id",)  # of the column of ids, as the source or Dolma names it


class Sidecars:
    """The sidecars of a corpus, for one scorer, as they are now.

    Parameters
    ----------
    settings
        Of the scorer.
    id_column
        The source's column of ids.

    Raises
    ------
    SettingsError
        If they are at a server that cannot list them.
    """

    def __init__(self, settings: SidecarScorerSettings, id_column: str = "id") -> None:
        self._id_names = tuple(dict.fromkeys((id_column, "id")))
        folder, slash, rest = settings.path.partition(SHARD)[0].rpartition("/")
        self._template = pin_commit(folder) + settings.path[len(folder) :] if slash else settings.path
        if self._template.startswith(("http://", "https://")):
            raise SettingsError(f"quality.scorers: http lists no files, received {settings.path!r}: download them")
        filesystem, root = open_filesystem(self._template.partition(SHARD)[0].removesuffix(rest) or ".")
        filesystem.invalidate_cache()
        found = attempt(settings.path, partial(filesystem.find, detail=True), root)
        self._files = {path: filesystem.info(path) if one.get("islink") else one for path, one in found.items()}

    def beside(self, shard: SourceShard) -> Sidecar:
        """Return the sidecar of a source file, whether it exists or not."""
        url = self._template.replace(SHARD, stem_of(shard.relative))
        info = self._files.get(open_filesystem(url)[1])
        return Sidecar(url=url, fingerprint=info and fingerprint_of(info), id_names=self._id_names)


def read_sidecar(
    sidecar: Sidecar, settings: SidecarScorerSettings, documents: pa.Table, rows: int
) -> tuple[NDArray[np.float32], str]:
    """Return the annotation of each row of a source file, (rows,), NaN without one, and what they are joined by.

    That is the `id` where `documents`, the `source_row` and `id` of all that ingest kept, and the annotations have
    ids; else the `place`.

    Raises
    ------
    BadShardError
        If there is no such file, it cannot be read, it has another number of rows, or its ids are others.
    """
    name, scorer = PurePosixPath(sidecar.url).name, f"the scorer {settings.name!r}"
    if not sidecar.fingerprint:
        raise BadShardError(f"{sidecar.url} does not exist, from which {scorer} takes its scores: check its path")
    try:
        values, ids = _read(sidecar, settings)
        with np.errstate(over="ignore"):
            values = values.astype(np.float32)
    except (*BROKEN_FILE_ERRORS, ValueError, TypeError, OSError) as error:
        if is_transient(error):
            raise
        raise BadShardError(f"{name}: {scorer} cannot read it: {error}") from error
    places = _places(name, ids, documents, rows, is_filled=settings.missing is not None)
    if places is not None:
        scores, is_there = np.full(rows, np.nan, dtype=np.float32), places.is_valid().to_numpy(zero_copy_only=False)
        scores[documents["source_row"].to_numpy()[is_there]] = values[places.drop_null()]
        return scores, "id"
    if len(values) != rows:
        raise BadShardError(
            f"{name} has {len(values):,} rows, its source file {rows:,}: {scorer} takes one for each row, those of "
            "documents that are dropped included"
        )
    return values, "place"


def _places(name: str, ids: pa.Array | None, documents: pa.Table, rows: int, *, is_filled: bool) -> pa.Array | None:
    """Return the row of a sidecar that each document has, (n,), null for none; None if it or the documents have no ids.

    Raises
    ------
    BadShardError
        If an id is missing, and nothing is filled in for it, or one is there twice, or one is of no document.
    """
    if ids is None or ids.null_count == len(ids):
        return None
    wanted, source_rows = documents["id"].combine_chunks(), documents["source_row"].combine_chunks()
    is_made = pc.starts_with(wanted, MADE_ID)
    if len(ids) == rows:
        beside = ids.take(source_rows)
        is_same = pc.if_else(pc.is_null(beside), is_made, pc.equal(beside, wanted))
        if pc.all(is_same, min_count=0).as_py():
            return source_rows
    found = pc.index_in(wanted, value_set=ids)
    if found.null_count == len(wanted) and pc.all(is_made, min_count=0).as_py():
        return None
    one, times = pc.value_counts(ids.drop_null()).flatten()
    is_wanted, missing = pc.is_in(one, value_set=wanted), wanted.filter(found.is_null())
    twice, others = one.filter(pc.and_(is_wanted, pc.greater(times, 1))), one.filter(pc.invert(is_wanted))
    for some, what, is_wrong in (
        (twice, "in more than one row", True),
        (missing, "without a row, which its documents have", not is_filled or len(missing) == len(wanted)),
        (others, "of no document of its source file", len(others) > rows - len(wanted)),
    ):
        told = f"{name} has {len(some):,} ids {what}: {', '.join(some.slice(0, NAMED_IDS).to_pylist())}"
        if len(some) and is_wrong:
            raise BadShardError(f"{told}: give one row for each id, or drop the ids to match rows by their place")
        if len(some) and some is missing:
            logger.warning("%s: their score is the one for `missing`", told)
    return found


def _read(sidecar: Sidecar, settings: SidecarScorerSettings) -> tuple[NDArray[Any], pa.Array | None]:
    """Return the values of a sidecar, and the ids of its rows as texts, if it has some."""
    url = sidecar.url
    if url.lower().endswith(".npy"):
        with open_source(url) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            return _column_of(array, settings.field if isinstance(settings.field, int) else None), None
    assert isinstance(settings.field, str)  # noqa: S101 - the settings demand it
    values, ids = list[float](), list[str | None]()
    for row, record in enumerate(_records(url, [settings.field, *sidecar.id_names])):
        if isinstance(record, str):
            raise TypeError(f"row {row:,} is not a JSON object: {record}")
        values.append(_score(inside(record, settings.field), row))
        known = [one for name in sidecar.id_names if (one := inside(record, name)) is not None]
        ids.append(label(known[0]) if known else None)
    return np.array(values, dtype=np.float64), pa.array(ids, pa.string())


def _records(url: str, names: Sequence[str]) -> Iterator[Record]:
    """Yield the rows of a file; one of Parquet must have the first of the named columns, and only these are read."""
    if not url.lower().endswith(".parquet"):
        yield from jsonl_records(url, url, LARGEST_DOCUMENT)
        return
    with open_parquet_source(url) as file:
        places = [place[0] for place, kind in (locate(name, file.schema_arrow) for name in names) if kind is not None]
        if locate(names[0], file.schema_arrow)[1] is None:
            raise ValueError(f"no column {names[0]!r}, `field` may name one of {file.schema_arrow.names}")
        for batch in file.iter_batches(columns=list(dict.fromkeys(places))):
            yield from batch.to_pylist()


def _column_of(array: NDArray[Any], index: int | None) -> NDArray[Any]:
    """Return one number per row of an array (n,), (n, 1), or (n, k) with the number of a column."""
    if array.dtype.kind not in "iuf":
        raise ValueError(f"it must hold numbers, its type is {array.dtype}")
    if array.ndim == 1 and index is None:
        return array
    if array.ndim == 2 and (index is not None or array.shape[1] == 1) and (index or 0) < array.shape[1]:
        return np.asarray(array[:, index or 0])
    raise ValueError(f"its shape is {array.shape}, `field` is {index}: set it for two dimensions, below the second")


def _score(value: object, row: int) -> float:
    """Return a number, that of the only span of a list, or NaN for null."""
    if value is None:
        return np.nan
    if isinstance(value, Sequence) and len(value) == 1 and isinstance(value[0], Sequence) and len(value[0]) == SPAN:
        value = value[0][-1]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"row {row:,} must hold a number or one span with a score, received {value!r:.80}")
    return float(value)
