"""Writers: where row groups and files end, how much waits in memory, and how many files are open."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.dataset import writers
from fineweb_mask.tasks.dataset.writers import DatasetWriter
from fineweb_mask.tasks.storage.atomic import tree_files

SCHEMA = pa.schema([("text", pa.string()), ("token_count", pa.int64()), ('it\'s "x"', pa.float64())])
MIB = 2**20


def rows(n, size=100):
    random = np.random.default_rng(0)
    texts = [random.bytes(size // 2).hex() for _ in range(n)]  # compresses to a half
    return pa.table([texts, list(range(n)), [float("nan"), *[0.5] * (n - 1)]], schema=SCHEMA)


def write(folder, table, batch, values=None, **settings):
    given = MaterializeSettings.model_validate(settings)
    with DatasetWriter(folder, SCHEMA, given) as writer:
        for start in range(0, table.num_rows, batch):
            rows = table.slice(start, batch)
            own = [""] * rows.num_rows if values is None else values[start : start + batch]
            writer.write(rows, pa.chunked_array([own], pa.string()))
    return tree_files(folder)


def groups(path):
    file = pq.ParquetFile(path).metadata
    return [file.row_group(index).num_rows for index in range(file.num_row_groups)]


def test_row_groups_and_files_have_their_size(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "ROW_GROUP_ROWS", 200)
    table = rows(1_300, 4_000)
    paths = write(tmp_path, table, 70, file_size=MIB)
    assert [path.name for path in paths] == [f"part-{index:05d}.parquet" for index in range(len(paths))]
    assert [rows for path in paths for rows in groups(path)] == [210] * 6 + [40]
    sizes = [path.stat().st_size for path in paths]
    assert len(sizes) > 2
    assert all(MIB <= size < 1.5 * MIB for size in sizes[:-1])
    assert pa.concat_tables([pq.read_table(path) for path in paths]).slice(1).equals(table.slice(1))


def test_a_row_group_of_long_texts_ends_early(tmp_path, monkeypatch):
    monkeypatch.setattr(writers, "ROW_GROUP_BYTES", 10_000)
    sizes = [100, 9_899, 1, 1, 30_000, 5_000, 4_999, 1, 7]
    table = pa.table([["x" * size for size in sizes], sizes, [0.0] * len(sizes)], schema=SCHEMA)
    [path] = write(tmp_path, table, 1)
    assert groups(path) == [2, 3, 2, 2]  # each ends with the row that brings it to 10,000 bytes


def test_rows_of_many_folders_keep_their_order_with_few_of_them_in_memory_and_few_files_open(tmp_path, monkeypatch):
    n, folders = 2_000, 20
    table = rows(n)
    values = [f"v{number % folders if number % 3 else 0}" for number in range(n)]
    whole = write(tmp_path / "whole", table, 100, values)
    assert [path.relative_to(tmp_path / "whole").as_posix() for path in whole] == sorted(
        f"v{number}/part-00000.parquet" for number in range(folders)
    )
    monkeypatch.setattr(writers, "PENDING_BYTES", 20_000)
    monkeypatch.setattr(writers, "OPEN_FILES", 3)
    most = []
    monkeypatch.setattr(writers, "check_folders", lambda *_: most.append(len(list(Path("/proc/self/fd").iterdir()))))
    bounded = write(tmp_path / "bounded", table, 100, values)
    assert max(most) - min(most) <= 3
    assert len(bounded) > folders
    for value in set(values):
        ids = [
            id_
            for path in bounded
            if path.parent.name == value
            for id_ in pq.read_table(path)["token_count"].to_pylist()
        ]
        assert ids == [number for number in range(n) if values[number] == value]
    again = write(tmp_path / "again", table, 100, values)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in bounded]
