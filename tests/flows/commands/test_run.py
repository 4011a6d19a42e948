"""`fineweb-mask run`: errors before any work starts, and a run of the sample."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.commands._common import WRONG_USAGE

ROOT = Path(__file__).resolve().parents[3]


def test_of_a_wrong_recipe_one_line_is_printed_and_nothing_else(invoke, recipe):
    done = invoke("run", recipe, "--set", "selection.lamd=0.3")
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (WRONG_USAGE, "", 1)
    assert done.stderr.startswith("fineweb-mask: selection.lamd: unknown setting; did you mean 'lamb'?")


def test_documents_are_looked_at_and_but_for_their_recipe_nothing_is_written(invoke, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    pq.write_table(
        pa.table({"body": [f"The text of page {page}, and it is the end." * 9 for page in range(40)]}), "p.parquet"
    )
    done = invoke("run", "p.parquet", "--dry-run", "--json")
    assert done.exit_code == 0, done.stderr
    assert {stage["missing"] for stage in json.loads(done.stdout)["stages"]} >= {1}
    assert "text       column 'body'" in done.stderr
    assert "No quality is scored" in done.stderr
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"p.parquet", "recipe.yaml"}


@pytest.mark.parametrize("command", ["run", "compare", "explore"])
def test_documents_that_are_not_there_or_are_no_recipe_are_named(invoke, command, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    done = invoke(command, "none.parquet", "--json") if command == "run" else invoke(command, "none.parquet")
    assert done.exit_code == 2
    assert "none.parquet" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_workspace_at_a_url_that_is_out_of_reach_is_an_error_before_anything_starts(invoke, recipe, bucket):
    for option in ("--workspace=", "--set=materialize.output="):
        done = invoke("run", recipe, f"{option}s3://no-such-bucket-here/x")
        assert done.exit_code == 2
        assert "s3://no-such-bucket-here/x does not exist" in done.stderr
    assert bucket.names() == {}


@pytest.mark.long
def test_run_ends_with_one_json_object_and_repeats_from_its_files(call, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    source = pq.read_table(ROOT / "data_samples" / "corpus" / "CC-MAIN-2023-50_00000.parquet")
    (corpus / "source=web").mkdir()
    pq.write_table(source.slice(0, 400), corpus / "source=web" / "good.parquet")
    (corpus / "bad.parquet").write_text("not parquet")
    (corpus / "notes.csv").write_text("text")
    folder = tmp_path / "workspace"
    settings = ("embedding.static_dimensions=64", "materialize.layout=source")
    sets = [f"--set={one}" for one in (*settings, f"source.path={corpus}")]
    arguments = ("run", "deployments/recipes/sample.yaml", "--workspace", folder, *sets)
    told = ["left out   .csv: 1 (notes.csv)"]
    looked = call(*arguments, "--dry-run")
    assert looked.stderr.startswith("reads      2 files, ")
    assert all(line in looked.stderr for line in told)
    assert looked.stdout.startswith(f"{folder}: 2 shards\nstage ")
    first = call(*arguments, "--json")
    assert first.returncode == 3, first.stderr
    assert not any(word in first.stderr for word in ("leaked", "Prefect", "INFO"))
    progress = re.compile(r"(\d+ h )?(\d+ min )?\d+ s: ")  # a line a minute, on a slow machine
    assert len([line for line in first.stderr.splitlines() if not progress.match(line)]) < 8
    assert all(line in first.stderr for line in (*told, "reads      2 files, ", "in paths   source=web"))
    assert [path.name for path in (folder / "dataset" / "data").iterdir()] == ["web"]
    for record in folder.glob("run*/*.json"):
        assert json.loads(record.read_text())["source"]["worries"][0][1].startswith(".csv: 1 (notes.csv): convert")
    assert "notes.csv" in (folder / "reports" / "index.html").read_text()
    summary = json.loads(first.stdout.splitlines()[-1])
    assert (summary["status"], summary["documents_in"]) == ("quarantined", 400)
    assert summary["quarantined"][0]["shard"] == "bad"
    stages = ["ingest", "dedup", "fit", "score", "embed", "select", "materialize", "report"]
    assert [stage["stage"] for stage in summary["stages"]] == stages
    second = call(*arguments)
    assert second.returncode == 3, second.stderr
    lines = second.stdout.splitlines()
    assert any(line.startswith("select") for line in lines)
    assert len(lines + second.stderr.splitlines()) <= 24
    assert all(line in second.stderr for line in told)
    assert json.loads((folder / "run.json").read_text())["source"]["lines"][0][1].endswith("MiB: 2 .parquet")
    assert lines[-2:] == [f"next     fineweb-mask report {folder} --open", f"         fineweb-mask explore {folder}"]
