"""What may be written where: not over what is read, not in a workspace or dataset, not over a file."""

import os
from pathlib import Path

import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.tasks.outputs import OutputError, check_apart, check_output
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, write_manifest
from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.source_files import discover, settings


def touch(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def apart(source, **written):
    check_apart(written, [source])
    check_apart(written, [shard.url for shard in discover(settings(source))])


@pytest.mark.parametrize("pattern", ["", "/", "/**/*.parquet"])
def test_what_is_written_below_the_source_is_refused_before_it_is_there(tmp_path, pattern):
    touch(tmp_path, "corpus/a.parquet", "corpus/sub/b.parquet")
    (tmp_path / "link").symlink_to(tmp_path / "corpus")
    for inside in ("corpus", "corpus/ws", "link/sub/ws"):
        with pytest.raises(OutputError, match=r"^workspace: .*overlap.*would be read as documents"):
            apart(f"{tmp_path}/corpus{pattern}", workspace=tmp_path / inside)
        with pytest.raises(OutputError, match=r"^materialize.output: "):
            apart(f"{tmp_path}/link{pattern}", workspace=tmp_path / "ws", **{"materialize.output": tmp_path / inside})
    with pytest.raises(OutputError, match="overlap"):
        check_apart({"workspace": tmp_path / "ws"}, ["/"])
    for source in ("corpus/sub", "corpus/sub/b.parquet", "*/sub/b.*"):  # the reverse
        with pytest.raises(OutputError, match=r"^workspace: "):
            apart(tmp_path / source, workspace=tmp_path / "corpus")


@pytest.mark.parametrize("source", ["corpus", "corpus/a.parquet", "c*/a*.parquet"])
def test_what_the_source_does_not_find_may_be_beside_it(tmp_path, source):
    touch(tmp_path, "corpus/a.parquet", "corpus2/documents/b.parquet")
    apart(tmp_path / source, workspace=tmp_path / "corpus2")
    apart(tmp_path / source, workspace=tmp_path / "corpus" / ".ws" / "deep")
    if source != "corpus":
        apart(tmp_path / source, workspace=tmp_path / "corpus" / "ws")
    for name in ("corpus/recipe.yaml", "corpus/_new.parquet", "new.parquet"):
        check_output(tmp_path / name, "--output", [tmp_path / source])


def test_a_workspace_below_a_source_at_a_url_is_refused(bucket):
    bucket.write("corpus/a.parquet", b"x")
    apart(f"{bucket.url}/corpus", workspace=f"{bucket.url}/corpus2")
    with pytest.raises(OutputError, match=r"^workspace: "):
        apart(f"{bucket.url}/corpus/", workspace=f"{bucket.url}/corpus/ws")


@pytest.mark.parametrize(
    ("read", "names"),
    [
        ("in.parquet", ["in.parquet", "link.parquet", "hard.parquet"]),
        ("link.parquet", ["in.parquet"]),
        ("file://{root}/in.parquet", ["in.parquet"]),
        ("*.parquet", ["new.parquet"]),
        ("corpus", ["corpus/new.JSONL"]),
        ("corpus/**/*.parquet", ["corpus/deep/new.parquet"]),
    ],
)
def test_what_is_read_is_not_written_even_by_force(tmp_path, read, names):
    touch(tmp_path, "in.parquet", "corpus/a.parquet", "corpus/deep/b.parquet")
    (tmp_path / "link.parquet").symlink_to("in.parquet")
    (tmp_path / "hard.parquet").hardlink_to(tmp_path / "in.parquet")
    read = read.format(root=tmp_path) if "://" in read else str(tmp_path / read)
    for name in names:
        with pytest.raises(OutputError, match=r"^--output: .*(is read, too|overlap)"):
            check_output(tmp_path / name, "--output", ["s3://bucket/x", read], replaces=True)


@pytest.fixture
def workspace(tmp_path):
    with Workspace(tmp_path / "ws").in_use() as used:
        touch(used.root, "documents/a.parquet", "dataset/README.md")
    key = StageKey(stage="materialize", version=1, settings="s", inputs="i")
    write_manifest(used.dataset / PROVENANCE, key, [used.dataset / "README.md"], {})
    (tmp_path / "elsewhere").symlink_to(used.root / "documents")
    (used.root / "documents" / "out").symlink_to(tmp_path / "nothing")
    return used.root


def test_a_workspace_holds_its_own_files_and_exports_only_and_a_dataset_its_own(tmp_path, workspace):
    for name in ("new", "run.json", "documents/out", "../elsewhere/new", "dataset/exports/new"):
        for folder in (False, True):
            with pytest.raises(OutputError, match=r"^--output: .* is in the (workspace|dataset) .*: name another"):
                check_output(workspace / name, "--output", replaces=True, folder=folder, within="exports")
    check_output(workspace / "exports" / "new", "--output", folder=True, within="exports")
    with pytest.raises(OutputError):
        check_output(workspace / "exports" / "new", "--output", folder=True)
    dataset = (workspace / "dataset").rename(tmp_path / "mine")
    with pytest.raises(OutputError, match="is in the dataset"):
        check_output(dataset / "data" / "x", "--output")


def test_a_file_is_replaced_if_asked_for_and_a_folder_is_not(tmp_path):
    touch(tmp_path, "mine", "folder/mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    for name in ("mine", "dangling"):
        with pytest.raises(OutputError, match="exists: add --force to replace it, or name another file"):
            check_output(tmp_path / name, "--output")
        check_output(tmp_path / name, "--output", replaces=True)
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe", "."):
        with pytest.raises(OutputError, match="is a folder or a device: name a file"):
            check_output(tmp_path / name, "--output", replaces=True)


def test_a_folder_is_new_or_empty_or_written_by_the_same_command(tmp_path):
    touch(tmp_path, "mine", "folder/mine")
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty", "deep/er"):
        check_output(tmp_path / name, "--output", folder=True)
    for name in ("mine", "folder"):
        with pytest.raises(OutputError, match="holds something else"):
            check_output(tmp_path / name, "--output", folder=True)
    check_output(tmp_path / "folder", "--output", folder=True, replaces=True)


def test_a_refusal_leaves_nothing_and_a_place_that_cannot_be_written_is_one(tmp_path):
    for path in ("s3://bucket/x", Path("s3://bucket/x"), "file:///tmp/x"):
        with pytest.raises(OutputError, match="must be a file of this machine"):
            check_output(path, "--output")
    touch(tmp_path, "file")
    for name in ("file/x", "file/x/y"):
        with pytest.raises(SettingsError, match="--output: nothing can be written to"):
            check_output(tmp_path / name, "--output")
    check_output(tmp_path / "new" / "er", "--output")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
