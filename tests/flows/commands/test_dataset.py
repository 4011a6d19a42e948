"""`fineweb-mask export` on a finished workspace, and what it refuses."""

import json
import shutil

import pytest

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.pipeline.dataset import materialize
from fineweb_mask.flows.pipeline.selection import select
from tests.flows.pipeline.run_here import RunHere, recipe_of, write_shard


@pytest.fixture(scope="module")
def finished(tmp_path_factory, sample_corpus):
    """A workspace with a dataset of 20 documents in two files."""
    folder = tmp_path_factory.mktemp("finished")
    for name, rows in (("a", range(20)), ("b", range(100, 120))):
        write_shard(folder, sample_corpus, name, rows)
    run = RunHere(recipe_of(folder / "w", folder / "*.parquet", materialize={"layout": "flat"}))
    run.workspace.root.mkdir()
    (run.workspace.root / ".fineweb-mask").touch()
    materialize(run, select(run, prepare(run)))
    return folder / "w"


@pytest.fixture
def workspace(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "workspace")


def test_a_workspace_is_exported_into_itself_and_once(invoke, workspace):
    done = invoke("export", workspace, "--format", "parquet", "--json")
    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert summary["folder"] == str(workspace / "exports" / "parquet")
    assert (summary["documents"], summary["cached"], summary["tokens"]) == (20, False, None)
    assert json.loads(invoke("export", workspace, "--format", "parquet", "--json").stdout)["cached"]
    done = invoke("export", workspace, "--format", "parquet", "--no-shuffle")
    assert f"parquet: 20 documents in {summary['files']} files" in done.stdout


def test_a_dataset_alone_is_exported_beside_itself_or_elsewhere(invoke, workspace, tmp_path):
    dataset = shutil.copytree(workspace / "dataset", tmp_path / "mine")
    assert invoke("export", dataset, "--format", "parquet").exit_code == 0
    assert (tmp_path / "mine-parquet" / "provenance.json").is_file()
    assert invoke("export", dataset, "--format", "parquet", "--output", tmp_path / "b", "--no-shuffle").exit_code == 0
    assert list((tmp_path / "b").glob("0000*.parquet"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("avro", "'megatron' or 'nanotron', received 'avro'"),
        ("megatron", "the format megatron needs one"),
        ("parquet --tokenizer gpt2", "leave it out"),
        ("megatron --tokenizer none.json", "'none.json' does not exist"),
        ("parquet --output s3://bucket/x", "must be a folder of this machine"),
        ("parquet --output {mine}", "holds something else"),
    ],
)
def test_what_cannot_be_exported_ends_with_2(invoke, workspace, tmp_path, options, message):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    done = invoke("export", workspace, "--json", "--format", *options.format(mine=tmp_path / "mine").split())
    assert done.exit_code == 2
    assert message in json.loads(done.stdout)["error"]
    assert not (workspace / "exports").exists()
