"""Partitions: each selected row once, the same bytes in any order of work, and only unfinished ones made again."""

from itertools import groupby
from tempfile import TemporaryDirectory
from urllib.parse import unquote

import duckdb
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.dataset import output, partition
from fineweb_mask.tasks.dataset.partition import folder_name, partition_jobs
from fineweb_mask.tasks.materialize import materialize
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.manifest import Manifest
from fineweb_mask.tasks.workspace.references import NO_FILE, ShardFiles
from tests.tasks.conftest import document, snapshot
from tests.tasks.dataset.conftest import KilledError, make


def rows_of(making):
    """Return the ids of each dump of a dataset, in the order of the files."""
    data = making.workspace.dataset / "data"
    paths = tree_files(data)
    return {
        unquote(folder): [id_ for path in of_folder for id_ in pq.read_table(path)["id"].to_pylist()]
        for folder, of_folder in groupby(paths, key=lambda path: path.parent.relative_to(data).as_posix())
    }


@pytest.mark.usefixtures("a_partition_each")
@pytest.mark.parametrize("layout", ["flat", "url", "dump"])
def test_bytes_do_not_depend_on_how_many_partitions_are_at_work_nor_on_duckdb_s_threads(
    four_shards, tmp_path, layout, monkeypatch
):
    making = make(tmp_path, four_shards, layout=layout)
    found, connect = [], duckdb.connect
    for threads, of_duckdb in ((1, 1), (3, 4)):

        def with_threads(*given, config=None, of_duckdb=of_duckdb):
            return connect(*given, config={**(config or {}), "threads": of_duckdb})

        monkeypatch.setattr(duckdb, "connect", with_threads)
        making.written(force=True, threads=threads)
        found.append(snapshot(making.workspace.root / "dataset-parts"))
    assert len([name for name in found[0] if "/data/" in name]) >= 4
    assert found[0] == found[1]


def test_rows_come_in_the_same_order_in_one_partition_and_in_several(four_shards, tmp_path, monkeypatch):
    made = []
    for size in (partition.PARTITION_BYTES, 1):
        monkeypatch.setattr(partition, "PARTITION_BYTES", size)
        making = make(tmp_path / str(size), four_shards)
        making.write()
        record = Manifest.model_validate_json((making.workspace.dataset / "provenance.json").read_text())
        details = {name: record.details[name] for name in ("retention", "sources", "rows", "tokens")}
        names = {path.name for path in tree_files(making.workspace.dataset / "data")}
        made.append((rows_of(making), details, names))
    (*whole, only), (*several, names) = made
    assert several == whole
    assert only == {"part-00000.parquet"}
    assert len(names) > 3
    assert names <= {f"part-{number:05d}-00000.parquet" for number in range(4)}


def test_row_groups_and_files_have_their_size_and_rows_of_many_folders_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(partition, "ROW_GROUP_ROWS", 100)
    monkeypatch.setattr(partition, "BATCH_ROWS", 64)
    rows = [(f"d{row % 3 if row > 500 else 0}", row % 5 > 0) for row in range(2_000)]
    making = make(tmp_path, [rows], file_size=2**20)
    size = making.shards[0].documents.bytes // len(rows)
    small = making.recipe.materialize.model_copy(update={"file_size": 300 * size})
    making._replace(recipe=making.recipe.model_copy(update={"materialize": small})).write()
    paths = tree_files(making.workspace.dataset / "data")
    files = {path.relative_to(making.workspace.dataset / "data").as_posix(): pq.read_metadata(path) for path in paths}
    assert list(files)[:3] == [f"d0/part-{number:05d}.parquet" for number in range(3)]
    assert {name.split("/")[0] for name in files} == {"d0", "d1", "d2"}
    assert [file.num_rows for name, file in files.items() if name.startswith("d0")][:-1] == [300, 300]
    groups = {file.row_group(place).num_rows for file in files.values() for place in range(file.num_row_groups - 1)}
    assert groups == {100}
    for dump, ids in rows_of(making).items():
        own = [f"<urn:uuid:{row}>" for row, (of, selected) in enumerate(rows) if of == dump and selected]
        assert ids == own


DUMPS = st.sampled_from(["a", "b/..", "", None])
LAYOUTS = st.sampled_from(["dump", "flat", "id", "token_count"])
SHARDS = st.lists(st.lists(st.tuples(DUMPS, st.booleans()), max_size=12), min_size=1, max_size=5)


@settings(max_examples=8)
@given(shards=SHARDS, size=st.sampled_from([1, 12_000, 2**30]), layout=LAYOUTS)
def test_every_selected_row_is_in_one_file_of_its_folder(shards, size, layout):
    made = [
        document(number, dump=dump)
        for number, (dump, selected) in enumerate(row for rows in shards for row in rows)
        if selected
    ]
    folders = ["." if layout == "flat" else folder_name(str(row[layout] or "unknown")) for row in made]
    expected = sorted((folder, row["id"]) for folder, row in zip(folders, made, strict=True))
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "PARTITION_BYTES", size)
        making = make(folder, shards, layout=layout)
        job = making.written()
        data = job.place.parts / "data"
        found = [
            (path.parent.relative_to(data).as_posix(), id_)
            for path in tree_files(data)
            for id_ in pq.read_table(path)["id"].to_pylist()
        ]
        assert sorted(found) == expected
        assert sum(file.rows for file in job.partitions) == len(expected)


def built(monkeypatch):
    """Return the list into which the name of every partition that is written is entered."""
    seen = []
    build = partition.write_partition._build

    def counted(job):
        seen.append(job.name)
        build(job)

    monkeypatch.setattr(partition.write_partition, "_build", counted)
    return seen


@pytest.mark.usefixtures("a_partition_each")
@pytest.mark.long
def test_killed_after_some_partitions_only_the_others_are_written(four_shards, tmp_path, monkeypatch):
    making = make(tmp_path / "killed", four_shards)
    written = output.write_manifest
    calls = []

    def kill_at_second(*arguments, **options):
        calls.append(arguments)
        if len(calls) == 2:
            raise KilledError
        written(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(output, "write_manifest", kill_at_second)
        with pytest.raises(KilledError):
            making.written()
    assert not making.workspace.dataset.exists()
    seen = built(monkeypatch)
    making.written()
    assert seen == ["00002", "00001", "00000"]  # the helper takes the last ones first
    whole = make(tmp_path / "whole", four_shards)
    whole.written()
    made, expected = (snapshot(one.workspace.root / "dataset-parts") for one in (making, whole))
    assert made == expected


@pytest.mark.usefixtures("a_partition_each")
def test_damaged_parts_are_written_again(four_shards, tmp_path, monkeypatch):
    making = make(tmp_path, four_shards)
    made = making.written()
    lost, cut = (min(made.place.parts.rglob(f"part-{file.name}-*")) for file in made.partitions[2:4])
    cut.write_bytes(cut.read_bytes()[:-9])
    with pytest.raises(WorkspaceError, match=r"^part 00003 of the dataset is missing or damaged: run again"):
        materialize(made)
    lost.unlink()
    with pytest.raises(WorkspaceError, match=r"^part 00002 of the dataset is missing or damaged: run again"):
        materialize(made)
    seen = built(monkeypatch)
    making.written()
    assert seen == ["00003", "00002"]


@pytest.mark.usefixtures("a_partition_each")
@pytest.mark.long
def test_parts_of_another_corpus_are_neither_taken_nor_removed(four_shards, tmp_path, monkeypatch):
    """Another run may be making its dataset of them."""
    make(tmp_path, four_shards).written()
    before = set((tmp_path / "dataset-parts").iterdir())
    changed = [*four_shards[:-1], [("D9", True)] * 3]
    making = make(tmp_path, changed)
    seen = built(monkeypatch)
    making.write()
    assert seen == [f"{number:05d}" for number in range(3, -1, -1)]
    assert set((tmp_path / "dataset-parts").iterdir()) == before  # the others are removed
    assert rows_of(making)["D9"] == [f"<urn:uuid:{sum(map(len, changed[:-1])) + row}>" for row in range(3)]


@pytest.mark.usefixtures("a_partition_each")
def test_nothing_selected_is_a_dataset_without_files(tmp_path):
    making = make(tmp_path, [[("A", False)] * 3, [("B", False)]])
    assert making.write().rows == 0
    assert not (making.workspace.dataset / "data").exists()
    assert making.job.current() is not None


SIZES = st.lists(st.tuples(st.integers(0, 1000), st.booleans()), min_size=1, max_size=300)
"""Bytes of each shard's source file, and whether it is selected from."""


@given(SIZES, st.integers(1, 500))
def test_every_shard_is_in_one_partition_which_is_full_with_its_last_one(sizes, target):
    names, same = [f"{number:03d}" for number in range(len(sizes))], {"url": "", "format": "parquet", "fingerprint": ""}
    files = [
        SourceShard(name=name, relative=name, bytes=size, **same) for name, (size, _) in zip(names, sizes, strict=True)
    ]
    shards = [ShardFiles(documents=NO_FILE.model_copy(update={"name": name})) for name in names]

    def jobs(shards):
        return partition_jobs("/x", shards, {file.name: file for file in files}, MaterializeSettings())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "PARTITION_BYTES", target)
        found = jobs(shards)
        some = jobs([shard for shard, (_, is_there) in zip(shards, sizes, strict=True) if is_there])
    assert [shard.name for job in found for shard in job.shards] == names
    held = [[source.bytes for source in job.sources] for job in found]
    assert all(sum(own) >= target for own in held[:-1])
    assert all(sum(own[:-1]) < target for own in held)
    assert len({job.key.fingerprint for job in found}) == len(found)
    places = {shard.name: job.number for job in found for shard in job.shards}
    left = [name for name, (_, is_there) in zip(names, sizes, strict=True) if is_there]
    assert [(shard.name, job.number) for job in some for shard in job.shards] == [(one, places[one]) for one in left]
    assert {job.partitions for job in some} <= {len(found)}


def test_a_file_that_is_gone_when_its_partition_is_written_is_named_as_one_to_build_again(tmp_path):
    making = make(tmp_path, [[("A", True)], [("B", True)]])
    [job] = making.partition_jobs()
    making.workspace.resolve(making.shards[1].scores).unlink()
    with pytest.raises(DamagedFileError, match=r"/scores/001\.\w+\.parquet is damaged: it is missing"):
        partition.write_partition(job)


def test_the_version_follows_what_is_in_the_files_and_not_where_or_how_fast(four_shards, tmp_path):
    making = make(tmp_path, four_shards)

    def version(**changes):
        return making.with_settings(**changes).job.place.version

    same = {version(), version(title="x"), version(output="/x")}
    others = {version(layout="flat"), version(file_size=2**20)}
    assert (len(same), len(others | same)) == (1, 3)
    assert making._replace(shards=making.shards[:-1]).job.place.version not in same
