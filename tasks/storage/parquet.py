"""Read Parquet files, here or at a URL, with their page checksums verified.

Every page that we write has a CRC32 (`write_page_checksum`), which PyArrow compares where it is asked to. DuckDB
compares none: a stage hands it what PyArrow has read. The checksum is not of the page's head, of which a wrong one can
end the rows too early without an error: they are counted here. Nothing in the format guards the footer: PyArrow refuses
one that it cannot read, and a stage's file without its key in there is no file of that stage.

A file of another program is verified as far as it has checksums.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.errors import StorageError
from fineweb_mask.tasks.storage.remote.copies import opened

Source = Path | str | BinaryIO | RawIOBase


class DamagedFileError(StorageError):
    """A file does not hold what was written to it.

    Attributes
    ----------
    path
        The file.
    """

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} is damaged: {reason}")
        self.path = path
        self._reason = reason

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        """Let processes send it to each other."""
        return type(self), (self.path, self._reason)


class VerifiedFile(pq.ParquetFile):  # type: ignore[misc]
    """A Parquet file whose pages are verified when they are read, by row groups or batches; see `read_table`.

    Parameters
    ----------
    source
        The path, in a remote workspace of a file at the URL, or an open file.
    name
        What errors call an open file.
    options
        Those of `pyarrow.parquet.ParquetFile`.

    Raises
    ------
    DamagedFileError
        Here or while reading: if the file is damaged.
    OSError
        If it cannot be opened or read.
    """

    def __init__(self, source: Source, name: str = "", **options: Any) -> None:  # noqa: ANN401
        self._name = name or str(source)
        with _explained(self._name):
            super().__init__(_opened(source), page_checksum_verification=True, **options)

    def read_row_group(self, *arguments: Any, **options: Any) -> pa.Table:  # noqa: ANN401
        """Read a row group, as `pyarrow.parquet.ParquetFile.read_row_group`."""
        with _explained(self._name):
            return super().read_row_group(*arguments, **options)

    def iter_batches(self, *arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:  # noqa: ANN401
        """Yield batches, as `pyarrow.parquet.ParquetFile.iter_batches`."""
        batches, read = super().iter_batches(*arguments, **options), 0
        groups = options.get("row_groups")
        while True:
            with _explained(self._name):
                batch = next(batches, None)
            if batch is None:
                break
            read += batch.num_rows
            yield batch
        numbers = range(self.num_row_groups) if groups is None else groups
        _check_rows(self._name, read, sum(self.metadata.row_group(number).num_rows for number in numbers))


def read_table(path: Path | str, columns: Sequence[str] | None = None, **options: Any) -> pa.Table:  # noqa: ANN401
    """Return the table of a file, verified; `options` are those of `pyarrow.parquet.read_table`.

    Raises
    ------
    DamagedFileError
        If the file is damaged.
    KeyError
        If it lacks one of the columns.
    """
    with _explained(str(path)):
        source = _opened(path)
        footer = pq.read_metadata(source)
        names = footer.schema.to_arrow_schema().names
        if missing := sorted(set(columns or []).difference(names)):
            raise KeyError(f"{path} has no column {missing[0]!r}, it has {', '.join(names)}")
        table = pq.read_table(source, columns=columns, page_checksum_verification=True, **options)
    if "filters" not in options:
        _check_rows(str(path), table.num_rows, footer.num_rows)
    return table


def read_metadata(path: Path | str) -> pq.FileMetaData:
    """Return the footer of a file.

    Raises
    ------
    DamagedFileError
        If the footer cannot be read, or the file is not Parquet.
    """
    with _explained(str(path)):
        return pq.read_metadata(_opened(path))


def read_schema(path: Path | str) -> pa.Schema:
    """Return the columns of a file; raises as `read_metadata`."""
    return read_metadata(path).schema.to_arrow_schema()


def _check_rows(path: str, read: int, written: int) -> None:
    if read != written:
        raise DamagedFileError(path, f"it must have {written:,} rows, {read:,} can be read")


def _opened(source: Source) -> Source:
    return opened(Path(source)) if isinstance(source, Path | str) else source


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Raise `DamagedFileError` for errors that PyArrow raises for what a file holds."""
    try:
        yield
    except OSError as error:
        if error.errno is not None or type(error) is not OSError:
            raise
        raise DamagedFileError(path, str(error)) from error
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, UnicodeDecodeError) as error:
        raise DamagedFileError(path, str(error)) from error
