"""Find and read sidecars: files with annotations that others have made of the rows of each source file.

WebOrganizer ships a NumPy array for each file of documents, Dolma a file of JSON Lines
(https://github.com/allenai/dolma, "attributes"): row by row as the documents are. A sidecar is found by the path of the
source file, and its size and date, or its content, are in the key of the scores.
"""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from fineweb_mask.models.settings.quality import SHARD, SidecarScorerSettings
from fineweb_mask.tasks.source.discovery import SourceShard, content_of, fingerprint_of, pin_commit, stem_of
from fineweb_mask.tasks.source.jsonl import jsonl_records
from fineweb_mask.tasks.source.reader import BROKEN_FILE_ERRORS, open_parquet_source
from fineweb_mask.tasks.storage.remote.errors import is_missing, is_transient
from fineweb_mask.tasks.storage.remote.filesystem import open_filesystem, open_source
from fineweb_mask.tasks.storage.remote.retries import attempt
from fineweb_mask.tasks.workspace.job import BadShardError

MOST_LINE_BYTES = 32 * 2**20
"""Longest line of a sidecar."""

SPAN = 3
"""Values of a span of Dolma: its start, its end and its score."""


class Sidecar(BaseModel):
    """The annotations of one source file."""

    model_config = ConfigDict(frozen=True)

    url: str
    fingerprint: str  # empty if there is no such file


class Sidecars:
    """The sidecars of a corpus, for one scorer, as they are now; a server of HTTP lists none.

    Parameters
    ----------
    settings
        Of the scorer.
    by_content
        Whether a file is known by its content, and not by its size and date.
    """

    def __init__(self, settings: SidecarScorerSettings, *, by_content: bool) -> None:
        folder, slash, rest = settings.path.partition(SHARD)[0].rpartition("/")
        self._template = pin_commit(folder) + settings.path[len(folder) :] if slash else settings.path
        self._by_content = by_content
        self._fingerprints: dict[str, str] | None = None  # by path; None: looked up one by one
        if not self._template.startswith(("http://", "https://")):
            filesystem, root = open_filesystem(self._template.partition(SHARD)[0].removesuffix(rest) or ".")
            filesystem.invalidate_cache()
            found = attempt(settings.path, _files_below, filesystem, root)
            self._fingerprints = {path: fingerprint_of(info) for path, info in found.items()}

    def beside(self, shard: SourceShard) -> Sidecar:
        """Return the sidecar of a source file, whether it exists or not."""
        url = self._template.replace(SHARD, stem_of(shard.relative))
        filesystem, path = open_filesystem(url)
        if self._fingerprints is not None:
            fingerprint = self._fingerprints.get(path, "")
        else:
            fingerprint = attempt(url, _fingerprint, filesystem, path)
        if fingerprint and self._by_content:
            fingerprint = content_of(url)
        return Sidecar(url=url, fingerprint=fingerprint)


def _files_below(filesystem: Any, root: str) -> dict[str, dict[str, Any]]:  # noqa: ANN401
    """Return the fsspec `info` of the files below a folder, by path; links are followed."""
    found = filesystem.find(root, detail=True)
    return {path: filesystem.info(path) if info.get("islink") else info for path, info in found.items()}


def _fingerprint(filesystem: Any, path: str) -> str:  # noqa: ANN401
    try:
        return fingerprint_of(filesystem.info(path))
    except FileNotFoundError as error:
        if not is_missing(error):
            raise
        return ""


def read_sidecar(sidecar: Sidecar, settings: SidecarScorerSettings, rows: int) -> NDArray[np.float32]:
    """Return the annotation of each row of a source file, (rows,); NaN for null.

    Raises
    ------
    BadShardError
        If there is no such file, it cannot be read, or it has another number of rows.
    """
    name, scorer = PurePosixPath(sidecar.url).name, f"the scorer {settings.name!r}"
    if not sidecar.fingerprint:
        raise BadShardError(f"{sidecar.url} does not exist, from which {scorer} takes its scores: check its path")
    try:
        values = _read(sidecar.url, settings)
    except (*BROKEN_FILE_ERRORS, ValueError, TypeError, OSError) as error:
        if is_transient(error):
            raise
        raise BadShardError(f"{name}: {scorer} cannot read it: {error}") from error
    if len(values) != rows:
        raise BadShardError(
            f"{name} has {len(values):,} rows, its source file {rows:,}: {scorer} takes one for each row, those of "
            "documents that are dropped included"
        )
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _read(url: str, settings: SidecarScorerSettings) -> NDArray[Any]:
    if url.lower().endswith(".npy"):
        with open_source(url) as stream:
            array = np.lib.format.read_array(stream, allow_pickle=False)
            return _column_of(array, settings.field if isinstance(settings.field, int) else None)
    assert isinstance(settings.field, str)  # noqa: S101 - the settings demand it
    if url.lower().endswith(".parquet"):
        return _parquet_values(url, settings.field)
    values = []
    for row, record in enumerate(jsonl_records(url, url, MOST_LINE_BYTES)):
        if isinstance(record, str):
            raise TypeError(f"row {row:,} is not a JSON object: {record}")
        values.append(_score(_inside(record, settings.field), row))
    return np.array(values, dtype=np.float64)


def _column_of(array: NDArray[Any], index: int | None) -> NDArray[Any]:
    """Return one number per row of an array (n,), (n, 1), or (n, k) with the number of a column."""
    if array.dtype.kind not in "iuf":
        raise ValueError(f"it must hold numbers, its type is {array.dtype}")
    if array.ndim == 1 and index is None:
        return array
    if array.ndim == 2 and (index is not None or array.shape[1] == 1) and (index or 0) < array.shape[1]:
        return np.asarray(array[:, index or 0])
    raise ValueError(f"its shape is {array.shape}, `field` is {index}: set it for two dimensions, below the second")


def _parquet_values(url: str, field: str) -> NDArray[Any]:
    with open_parquet_source(url) as file:
        first, *inner = [field] if field in file.schema_arrow.names else field.split(".")
        if first not in file.schema_arrow.names:
            raise ValueError(f"no column {field!r}, `field` may name one of {file.schema_arrow.names}")
        column = file.read(columns=[first])[first]
    for name in inner:
        column = pc.struct_field(column, name)
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return np.asarray(column.cast(pa.float64()).to_numpy())  # null becomes NaN
    return np.array([_score(value, row) for row, value in enumerate(column.to_pylist())], dtype=np.float64)


def _inside(record: Mapping[str, Any], field: str) -> object:
    """Return the value of a key, which may have points in it, or of keys within keys; None without it."""
    if field in record:
        return record[field]
    first, _, rest = field.partition(".")
    inner = record.get(first)
    if isinstance(inner, dict) and rest:
        return _inside(inner, rest)
    return None


def _score(value: object, row: int) -> float:
    """Return a number, that of the only span of a list, or NaN for null."""
    if value is None:
        return np.nan
    if isinstance(value, Sequence) and len(value) == 1 and isinstance(value[0], Sequence) and len(value[0]) == SPAN:
        value = value[0][-1]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"row {row:,} must hold a number or one span with a score, received {value!r:.80}")
    return float(value)
