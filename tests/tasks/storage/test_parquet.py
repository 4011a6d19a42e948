"""Every flipped bit of a page is an error that names the file, or changes nothing that is read."""

import pickle
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.storage.parquet import (
    DamagedFileError,
    VerifiedFile,
    read_metadata,
    read_schema,
    read_table,
)

FLIPS = 60
"""Of each file."""


def table(rows: int = 1000) -> pa.Table:
    random = np.random.default_rng(0)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(random.random(rows * 4, dtype=np.float32)), 4)
    return pa.table(
        {
            "row": pa.array(range(rows), pa.uint32()),
            "text": [f"text {number}" * 5 for number in range(rows)],
            "dump": ["a", "b"] * (rows // 2),
            "embedding": vectors,
        }
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    pq.write_table(table(), tmp_path / "x.parquet", row_group_size=300, write_page_checksum=True)
    return tmp_path / "x.parquet"


def flipped(content: bytes, bit: int) -> bytes:
    found = bytearray(content)
    found[bit // 8] ^= 1 << bit % 8
    return bytes(found)


def pages_end(path: Path) -> int:
    return path.stat().st_size - pq.read_metadata(path).serialized_size - 8  # after the footer: its length and PAR1


def last_byte(column: pq.ColumnChunkMetaData) -> int:
    first = column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset
    return int(first + column.total_compressed_size - 1)


def read_in_batches(path: Path) -> pa.Table:
    with VerifiedFile(path) as file:
        return pa.Table.from_batches(file.iter_batches(100), file.schema_arrow)


def read_or_path(read: Callable[[Path], pa.Table], path: Path) -> Any:
    """Return the rows, or the path that the error names."""
    try:
        return read(path)
    except DamagedFileError as error:
        return error.path


@pytest.mark.parametrize("folder", ["documents", "scores", "embeddings", "masks"])
@pytest.mark.parametrize("read", [read_table, read_in_batches])
def test_a_flipped_bit_in_a_page_is_an_error_or_changes_nothing(built, tmp_path, folder, read):
    path = min((built.workspace.root / folder).rglob("*.parquet"))
    content, expected = path.read_bytes(), read(path)
    numbers = random.Random(folder)
    bits = [numbers.randrange(8 * pages_end(path)) for _ in range(FLIPS)]
    harmless = 0
    for place, bit in enumerate(bits):
        copy = tmp_path / f"{place}.parquet"
        copy.write_bytes(flipped(content, bit))
        found = read_or_path(read, copy)
        if found != str(copy):
            harmless += 1  # such as the smallest and largest values in the head of a page, which nothing reads
            assert found.equals(expected, check_metadata=True)
    assert harmless < len(bits) / 4


def test_no_flipped_bit_in_a_footer_is_a_bug(file: Path) -> None:
    """It may change a name or a number, as docs/reliability.md says; it is never another error than for a bad file."""
    content = file.read_bytes()
    for bit in range(8 * pages_end(file), 8 * len(content), 29):
        file.write_bytes(flipped(content, bit))
        with suppress(DamagedFileError):
            read_table(file)


def test_a_damaged_page_is_named_however_it_is_read(file: Path) -> None:
    column = read_metadata(file).row_group(1).column(1)
    file.write_bytes(flipped(file.read_bytes(), 8 * last_byte(column)))
    ways: list[Callable[[VerifiedFile], Any]] = [
        lambda one: one.read_row_group(1),
        lambda one: list(one.iter_batches()),
    ]
    for read in ways:
        with VerifiedFile(file) as opened, pytest.raises(DamagedFileError, match="could not verify page integrity"):
            read(opened)


@pytest.mark.parametrize("content", [b"", b"x" * 100, b"PAR1" + b"\xff" * 20 + b"PAR1"])
def test_what_is_no_parquet_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(content)
    for read in (read_table, read_schema, VerifiedFile):
        with pytest.raises(DamagedFileError, match=r"x\.parquet is damaged: "):
            read(path)


def test_a_missing_file_and_a_missing_column_are_no_damage(file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_table(file.with_name("y.parquet"))
    with pytest.raises(KeyError, match="no column 'wrong', it has row, text, dump, embedding"):
        read_table(file, columns=["row", "wrong"])


def test_the_error_crosses_processes() -> None:
    found = pickle.loads(pickle.dumps(DamagedFileError("a/b.parquet", "why")))
    assert (type(found), found.path, str(found)) == (DamagedFileError, "a/b.parquet", "a/b.parquet is damaged: why")
