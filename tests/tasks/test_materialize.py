"""The product as a whole: made when it must be, put in place whole or not at all, with a record of where it is from."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.tasks.dataset import partition
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.outputs import OutputError
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.references import digest, file_digest
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.conftest import materialize_again, parts, read_card, selected_rows, snapshot


@pytest.mark.long
def test_the_datasets_package_loads_every_row(hostile_dumps, tmp_path):
    folder = tmp_path / "dataset"
    hostile_dumps.making.with_settings(output=str(folder)).write()
    code = (
        "import json, sys, datasets; d = datasets.load_dataset(sys.argv[1], split='train');"
        "print(json.dumps([d.column_names, d['id'][:]]))"
    )
    command, home = [sys.executable, "-c", code, str(folder)], {"HF_HOME": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    loaded = subprocess.run(command, env=os.environ | home, capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr
    columns, ids = json.loads(loaded.stdout.splitlines()[-1])
    expected = selected_rows(hostile_dumps)
    assert columns == [*FINEWEB.names, "tags", 'say "hi"', "space", "quality", "inclusion", "block"]
    assert sorted(ids) == sorted(row["id"] for row in expected)


def test_wrong_counts_and_a_file_that_lost_rows_leave_the_old_dataset(copied, monkeypatch):
    before = snapshot(copied.workspace.dataset)
    wrong = copied.counts.model_copy(update={"selected": copied.counts.selected + 1})
    making = copied.making._replace(counts=wrong).with_settings(title="Another")
    with pytest.raises(WorkspaceError, match=f"select {wrong.selected - 1} documents, the counts say {wrong.selected}"):
        making.write()
    monkeypatch.setattr(partition, "_write_files", lambda _job, _folder, batches: list(batches)[:0])
    with pytest.raises(WorkspaceError, match="files hold 0 documents, 16 were selected: run again"):
        materialize_again(copied)
    assert snapshot(copied.workspace.dataset) == before


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a file system can be mounted by root only: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.long
def test_a_full_or_read_only_disk_leaves_the_old_dataset(copied, small_disk):
    root = small_disk / "workspace"
    shutil.copytree(copied.workspace.root, root, ignore=shutil.ignore_patterns("reports", "fitted", "embeddings"))
    making = copied.making._replace(workspace=Workspace(root))
    before = snapshot(root / "dataset")
    with (small_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"x" * 4096)
    message = r"^partition 00000: .*: No space left on device \(more than the [\d,]+ bytes that are free were needed\)"
    with pytest.raises(WorkspaceError, match=message):
        making.write(force=True)
    assert snapshot(root / "dataset") == before
    assert not list(root.rglob(".*.partial"))
    (small_disk / "filler").unlink()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(WorkspaceError, match=r"Read-only file system: choose a workspace that can be written"):
        making.write(force=True)
    assert snapshot(root / "dataset") == before
    subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)
    making.write(force=True)
    assert snapshot(root / "dataset") == before  # the same dataset, made again


def test_provenance_adds_up(built):
    manifest = json.loads((built.workspace.dataset / "provenance.json").read_text())
    details = manifest["details"]
    counts = details["counts"]
    assert details["rows"] == counts["selected"] == sum(block["selected"] for block in details["blocks"])
    assert counts["documents_in"] == sum(source["documents_in"] for source in details["sources"])
    assert counts["documents_ingested"] == sum(source["documents_kept"] for source in details["sources"])
    for source in details["sources"]:
        assert source["documents_in"] == source["documents_kept"] + sum(source["dropped"].values())
    assert counts["documents_in"] == counts["selected"] + counts["not_selected"] + sum(counts["dropped"].values())
    assert sum(row["selected"] for row in details["retention"]) == counts["selected"]
    assert sum(row["documents"] for row in details["retention"]) == counts["documents_ingested"]
    assert [source["relative"] for source in details["sources"]] == ["a/000.parquet", "a/001.parquet", "b.parquet"]
    assert str(built.workspace.root) not in json.dumps(manifest)
    for name, file in manifest["files"].items():
        path = built.workspace.dataset / name
        assert (file["bytes"], file["sha256"]) == (path.stat().st_size, file_digest(path))
    assert set(manifest["files"]) == {
        path.relative_to(built.workspace.dataset).as_posix() for path in tree_files(built.workspace.dataset)
    } - {"provenance.json"}


@pytest.mark.long
def test_an_interrupted_build_leaves_the_old_dataset(copied):
    before = snapshot(copied.workspace.dataset)
    making = copied.making.with_settings(title="Another")
    scores = copied.workspace.resolve(copied.scores[1])
    whole = scores.read_bytes()
    scores.write_bytes(whole[:-20])
    with pytest.raises(DamagedFileError, match=r"/scores/a-001\.\w+\.parquet is damaged: Parquet magic bytes"):
        making.write()
    scores.write_bytes(whole[:40] + bytes(byte ^ 255 for byte in whole[40:80]) + whole[80:])  # a page, found on reading
    with pytest.raises(DamagedFileError, match="could not verify page integrity"):
        making.write()
    assert snapshot(copied.workspace.dataset) == before
    assert not list(copied.workspace.root.glob(".*.partial"))
    scores.write_bytes(whole)
    making.write()
    assert read_card(copied.workspace)[0]["pretty_name"] == "Another"


def test_a_lost_part_builds_the_dataset_again(built, copied):
    parts(copied.workspace)[0].unlink()
    (copied.workspace.dataset / "data" / "left over.txt").write_text("x")
    assert copied.dataset_job.current() is None
    assert not copied.making.write().cached
    for path, original in zip(parts(copied.workspace), parts(built.workspace), strict=True):
        assert path.read_bytes() == original.read_bytes()
    assert not (copied.workspace.dataset / "data" / "left over.txt").exists()


def test_the_key_follows_files_and_settings(built):
    def key(shards=built.making.shards, **changes):
        return str(built.making._replace(shards=shards).with_settings(**changes).job.key.fingerprint)

    assert key() == built.dataset_job.key.fingerprint
    first, *others = built.making.shards
    changed = first.model_copy(update={"masks": first.masks.model_copy(update={"fingerprint": digest("other")})})
    assert len({key(), key([changed, *others]), key(others), key(title="x"), key(layout="flat")}) == 5


def test_the_dataset_goes_to_a_folder_of_its_own_and_replaces_nothing_else(copied, pipeline, tmp_path):
    folder = tmp_path / "out" / "dataset"
    settings = copied.recipe.materialize.model_copy(update={"output": str(folder)})
    shutil.rmtree(copied.workspace.dataset)
    made = pipeline(copied.recipe.model_copy(update={"workspace": str(copied.workspace.root), "materialize": settings}))
    assert not copied.workspace.dataset.exists()
    assert (folder / "README.md").is_file()
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "data", "provenance.json"]
    assert str(folder) not in (folder / "provenance.json").read_text()
    assert made.dataset.fingerprint == copied.dataset.fingerprint
    assert made.dataset_job.current() is not None
    assert made.dataset_job.place.display_path == str(folder)
    made.dataset_job.place.check()
    mine = tmp_path / "mine"
    mine.mkdir()
    output = Output.of(copied.workspace, settings.model_copy(update={"output": str(mine)}))
    output.check()
    for name in ("thesis.txt", "provenance.json"):  # of something else
        (mine / name).write_text("mine")
        with pytest.raises(OutputError, match=r"mine holds something else .*: give a new or empty folder"):
            output.check()
        with pytest.raises(OutputError):
            copied.making.with_settings(output=str(mine)).write(force=True)
        (mine / name).unlink()


def test_a_file_beside_the_dataset_is_not_lost_with_it(copied):
    output = Output.of(copied.workspace, copied.recipe.materialize)
    (output.folder / ".DS_Store").write_text("of a file browser")
    output.check()
    (output.folder / "notes.txt").write_text("mine")
    with pytest.raises(OutputError, match=r"dataset is replaced as a whole, and holds 'notes.txt', which no run wrote"):
        copied.making.write(force=True)
    assert (output.folder / "notes.txt").read_text() == "mine"
