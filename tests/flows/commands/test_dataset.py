"""`fineweb-mask export` on a finished workspace, and what it refuses; `verify` and `push` without a dataset."""

import json
import shutil

import pytest

from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance
from tests.tasks.conftest import built, corpus, labels, recipe, scorer  # noqa: F401 - fixtures


@pytest.fixture
def workspace(built, tmp_path):  # noqa: F811 - the fixture
    return shutil.copytree(built.workspace.root, tmp_path / "workspace")


def test_a_workspace_is_exported_into_itself_and_once(invoke, workspace):
    done = invoke("export", workspace, "--format", "parquet", "--json")
    assert done.exit_code == 0
    summary = json.loads(done.stdout)
    assert summary["folder"] == str(workspace / "exports" / "parquet")
    assert summary["documents"] == read_provenance(find_dataset(str(workspace))).details["rows"]
    assert (summary["files"], summary["cached"], summary["tokens"]) == (2, False, None)
    assert json.loads(invoke("export", workspace, "--format", "parquet", "--json").stdout)["cached"]
    done = invoke("export", workspace, "--format", "parquet", "--seed", 1)
    assert done.exit_code == 0
    assert f"parquet: {summary['documents']:,} documents in 2 files" in done.stdout


def test_a_dataset_alone_is_exported_beside_itself_or_elsewhere(invoke, workspace, tmp_path):
    dataset = shutil.copytree(workspace / "dataset", tmp_path / "mine")
    assert invoke("export", dataset, "--format", "parquet").exit_code == 0
    assert (tmp_path / "mine-parquet" / "provenance.json").is_file()
    assert invoke("export", dataset, "--format", "parquet", "--output", tmp_path / "b", "--no-shuffle").exit_code == 0
    assert (tmp_path / "b" / "00001.parquet").is_file()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "avro"], "'megatron' or 'nanotron', received 'avro'"),
        (["--format", "megatron"], "the format megatron needs one"),
        (["--format", "parquet", "--tokenizer", "gpt2"], "leave them out"),
        (["--format", "megatron", "--tokenizer", "none.json"], "'none.json' does not exist"),
        (["--format", "parquet", "--output", "s3://bucket/x"], "must be a folder of this machine"),
        (["--format", "parquet", "--file-size", "5"], "greater than or equal to 65536, received 5"),
    ],
)
def test_what_cannot_be_exported_ends_with_2(invoke, workspace, options, message):
    done = invoke("export", workspace, *options, "--json")
    assert done.exit_code == 2
    assert message in json.loads(done.stdout)["error"]
    assert not (workspace / "exports").exists()


def test_other_files_in_the_folder_are_not_replaced(invoke, workspace, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    done = invoke("export", workspace, "--format", "parquet", "--output", tmp_path / "mine")
    assert done.exit_code == 2
    assert "holds something else" in done.stderr
    assert invoke("export", tmp_path / "nowhere", "--format", "parquet").exit_code == 2


@pytest.mark.parametrize("command", ["verify", "push"])
@pytest.mark.parametrize(
    ("place", "message"),
    [("nowhere", "nowhere must be a folder"), ("", "is neither a dataset nor a workspace with one")],
)
def test_a_folder_without_a_dataset_ends_with_2(invoke, tmp_path, command, place, message):
    done = invoke(command, tmp_path / place, *(["me/data"] if command == "push" else []), "--json")
    assert done.exit_code == 2
    assert message in done.stderr
    assert message in json.loads(done.stdout)["error"]
