"""The workspace: whole files or none, and footers that say what a file came from."""

import hashlib
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.lake import (
    FOOTER_KEY,
    ROW_GROUP_ROWS,
    LakeError,
    Manifest,
    StageFile,
    StageKey,
    Workspace,
    current_parquet,
    digest,
    is_whole,
    manifest_reference,
    read_manifest,
    tree_files,
    write_manifest,
    written_file,
    written_folder,
    written_parquet,
)

KEY = StageKey(stage="numbers", version=1, settings="s", inputs="i")
SCHEMA = pa.schema([pa.field("row", pa.uint32(), nullable=False), pa.field("text", pa.string())])


def batch(rows: int = 3) -> pa.RecordBatch:
    return pa.record_batch([pa.array(range(rows), pa.uint32()), pa.array(["x"] * rows)], schema=SCHEMA)


def write(path: Path, rows: int = 3, key: StageKey = KEY) -> Path:
    with written_parquet(path, SCHEMA, key) as writer:
        writer.write(batch(rows))
        writer.details = {"b": 2, "a": [1, None]}
    return path


def fail_after(_: object) -> None:
    raise ValueError("stop")


def test_digest_is_stable_and_canonical() -> None:
    canonical = rb'{"a":"\u00e9","b":[1,2.5,null]}'
    assert digest({"b": [1, 2.5, None], "a": "é"}) == hashlib.sha256(canonical).hexdigest()[:32]
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest(["1"]) != digest([1])


def test_a_key_s_fingerprint_depends_on_every_part() -> None:
    changes: list[dict[str, object]] = [{}, {"stage": "t"}, {"version": 2}, {"settings": "t"}, {"inputs": "t"}]
    keys = [KEY.model_copy(update=change) for change in changes]
    assert len({key.fingerprint for key in keys}) == len(keys)
    assert KEY.cache_key == f"numbers/{KEY.fingerprint}"


def test_written_file_replaces_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    for text in ("one", "two"):
        with written_file(path) as partial:
            partial.write_text(text)
            assert partial.parent == path.parent
        assert path.read_text() == text
    assert os.listdir(path.parent) == ["file.txt"]  # noqa: PTH208


def test_written_file_leaves_the_old_one_on_error(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(ValueError, match="stop"), written_file(path) as partial:
        fail_after(partial.write_text("half"))
    assert path.read_text() == "old"
    assert tree_files(tmp_path) == [path]


def test_written_folder_swaps_whole(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for name in ("one", "two"):
        with written_folder(path) as partial:
            (partial / name).write_text(name)
        assert [file.name for file in tree_files(path)] == [name]
    with pytest.raises(ValueError, match="stop"), written_folder(path) as partial:
        fail_after((partial / "three").write_text("half"))
    assert [file.name for file in tree_files(tmp_path)] == ["two"]
    assert list(tmp_path.iterdir()) == [path]


def test_written_parquet_round_trips_its_footer(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    path = write(workspace.shard_path("numbers", "shard"))
    file = current_parquet(workspace, path, "shard", KEY)
    assert file == StageFile(
        stage="numbers",
        name="shard",
        path="numbers/shard.parquet",
        rows=3,
        bytes=path.stat().st_size,
        fingerprint=KEY.fingerprint,
        details={"a": [1, None], "b": 2},
        reused=True,
    )
    assert workspace.resolve(file) == path
    footer = json.loads(pq.read_metadata(path).metadata[FOOTER_KEY])
    assert footer == {**KEY.model_dump(), "details": {"a": [1, None], "b": 2}}


def test_written_parquet_leaves_nothing_on_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stop"), written_parquet(tmp_path / "x.parquet", SCHEMA, KEY) as writer:
        fail_after(writer.write(batch()))
    assert list(tmp_path.iterdir()) == []


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    assert write(tmp_path / "a" / "x.parquet").read_bytes() == write(tmp_path / "b" / "y.parquet").read_bytes()


def test_batches_are_joined_into_row_groups(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with written_parquet(path, SCHEMA, KEY) as writer:
        for _ in range(8):
            writer.write(batch(ROW_GROUP_ROWS // 4))
    metadata = pq.read_metadata(path)
    assert metadata.num_rows == 2 * ROW_GROUP_ROWS
    assert metadata.num_row_groups == 2


def test_an_empty_file_is_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    with written_parquet(path, SCHEMA, KEY):
        pass
    assert pq.read_table(path).equals(SCHEMA.empty_table())


@pytest.mark.parametrize(
    "change", [{"stage": "other"}, {"version": 2}, {"settings": "other"}, {"inputs": "other"}], ids=str
)
def test_a_file_of_another_key_is_not_current(tmp_path: Path, change: dict[str, object]) -> None:
    path = write(tmp_path / "x.parquet")
    assert current_parquet(Workspace(tmp_path), path, "x", KEY) is not None
    assert current_parquet(Workspace(tmp_path), path, "x", KEY.model_copy(update=change)) is None


def test_missing_truncated_and_foreign_files_are_not_current(tmp_path: Path) -> None:
    workspace, path = Workspace(tmp_path), tmp_path / "x.parquet"
    assert current_parquet(workspace, path, "x", KEY) is None
    whole = write(path).read_bytes()
    for damaged in (whole[:-1], whole[: len(whole) // 2], b"", b"not parquet at all"):
        path.write_bytes(damaged)
        assert current_parquet(workspace, path, "x", KEY) is None
    pq.write_table(pa.table({"row": [1]}), path)
    assert current_parquet(workspace, path, "x", KEY) is None
    path.unlink()
    path.mkdir()
    assert current_parquet(workspace, path, "x", KEY) is None


def write_product(folder: Path) -> Path:
    path = folder / "manifest.json"
    for name in ("one.txt", "below/two.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    files = [file for file in tree_files(folder) if file != path]
    write_manifest(path, KEY, files, {"rows": 5}, fitted_on=[])
    return path


def test_a_manifest_knows_its_files(tmp_path: Path) -> None:
    path = write_product(tmp_path)
    manifest = read_manifest(path)
    assert manifest is not None
    assert is_whole(path, manifest)
    assert sorted(manifest.files) == ["below/two.txt", "one.txt"]
    reference = manifest_reference(Workspace(tmp_path), path, "product", manifest)
    assert (reference.rows, reference.bytes, reference.fingerprint) == (5, 20, manifest.content)

    (tmp_path / "one.txt").write_text("longer than before")
    assert not is_whole(path, manifest)
    (tmp_path / "one.txt").write_text("one.txt")
    assert is_whole(path, manifest)
    (tmp_path / "below" / "two.txt").unlink()
    assert not is_whole(path, manifest)


def test_a_manifest_s_content_is_that_of_its_files(tmp_path: Path) -> None:
    one, other = (read_manifest(write_product(tmp_path / name)) for name in "ab")
    assert one is not None
    assert other is not None
    assert one == other
    changed = one.files | {"one.txt": one.files["one.txt"].model_copy(update={"sha256": "0"})}
    assert one.model_copy(update={"files": changed}).content != one.content
    assert one.model_copy(update={"details": {"rows": 6}}).content != one.content


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", '{"key": 1, "files": {}}', "\x00\ud7ff"])
def test_an_unreadable_manifest_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "manifest.json"
    assert read_manifest(path) is None
    path.write_text(text, encoding="utf-8")
    assert read_manifest(path) is None
    path.write_bytes(b"\xff\xfe")
    assert read_manifest(path) is None


def test_a_manifest_survives_its_own_json() -> None:
    manifest = Manifest(key=KEY, files={}, details={"statistics": {"x": (0.5, 1.0)}})
    assert Manifest.model_validate_json(manifest.model_dump_json()).content == manifest.content


def test_a_workspace_is_held_by_one_run(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "workspace")
    with (
        workspace.exclusive(),
        pytest.raises(LakeError, match="another run"),
        Workspace(workspace.root).exclusive(),
    ):
        pass
    with workspace.exclusive() as again:
        assert again is workspace


def test_holding_a_workspace_clears_what_was_left_half_written(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    kept = write(workspace.shard_path("numbers", "a/shard"))
    (kept.parent / ".shard.parquet.0a.partial").write_bytes(b"half")
    (tmp_path / ".dataset.0a.partial" / "data").mkdir(parents=True)
    (tmp_path / ".dataset.0a.partial" / "data" / "x").write_bytes(b"half")
    with workspace.exclusive():
        assert tree_files(tmp_path) == [tmp_path / ".lock", kept]
        assert not (tmp_path / ".dataset.0a.partial").exists()


def test_a_run_that_is_refused_clears_nothing(tmp_path: Path) -> None:
    partial = tmp_path / ".x.partial"
    with Workspace(tmp_path).exclusive():
        partial.write_bytes(b"being written")
        with pytest.raises(LakeError), Workspace(tmp_path).exclusive():
            pass
        assert partial.exists()
