"""The command as a user types it, in a process of its own, with no server set up."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
COMMAND = str(Path(sys.executable).with_name("fineweb-mask"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return {**mine, "PREFECT_HOME": str(tmp_path_factory.mktemp("prefect"))}


def call(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)


def test_run_ends_with_one_json_object_and_repeats_from_its_files(environment, tmp_path):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    source = pq.read_table(ROOT / "data_samples" / "corpus" / "CC-MAIN-2023-50_00000.parquet")
    pq.write_table(source.slice(0, 400), corpus / "good.parquet")
    (corpus / "bad.parquet").write_text("not parquet")
    arguments = (
        "run",
        "deployments/recipes/sample.yaml",
        *("--workspace", str(tmp_path / "workspace")),
        *("--set", f"source.path={corpus}"),
        *("--set", "embedding.static_dimensions=64"),
    )
    first = call(environment, *arguments, "--json")
    assert first.returncode == 3, first.stderr
    summary = json.loads(first.stdout.splitlines()[-1])
    assert summary["status"] == "quarantined"
    assert summary["documents_in"] == 400
    assert summary["quarantined"][0]["shard"] == "bad"
    stages = ("ingest", "dedup", "fit", "score", "embed", "select", "materialize", "report")
    assert tuple(stage["stage"] for stage in summary["stages"]) == stages

    second = call(environment, *arguments)
    assert second.returncode == 3, second.stderr
    lines = second.stdout.splitlines()
    assert any(line.startswith("select") for line in lines)
    assert lines[-1] == f"report   {tmp_path / 'workspace' / 'reports' / 'index.html'}"


def test_select_takes_the_options_of_the_paper_s_script(environment, tmp_path):
    features = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
    quality = np.linspace(0, 1, 200, dtype=np.float32)
    table = pa.table({"chunk_id": range(200), "quality_score": quality, "feature_arr": list(features)})
    pq.write_table(table, tmp_path / "in.parquet")
    script = "--device cpu --n_epochs 50 --partial 0.2 --max_lr 10 --min_lr 1 --n_rollout 16 --init quality --lamb 0.5"
    files = ("--input", str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out.parquet"))
    for algorithm in ("DiSF", "Facility", "Pair_simi"):
        arguments = (*files, *script.split(), "--select_ratio", "0.3", "--algorithm", algorithm, "--json")
        finished = call(environment, "select", *arguments)
        assert finished.returncode == 0, finished.stderr
        assert json.loads(finished.stdout.splitlines()[-1])["selected"] == 60
        assert pq.read_table(tmp_path / "out.parquet").num_rows == 60
    finished = call(environment, "select", *files, "--solver", "mean_field", "--algorithm", "Pair_simi", "--json")
    result = json.loads(finished.stdout.splitlines()[-1])
    assert result["random_objective"] < result["objective"] <= result["upper_bound"]
    wrong = call(environment, "select", *files, "--lamb", "2")
    assert wrong.returncode == 2
    assert "lamb" in wrong.stderr


def test_real_pages_reach_a_roc_auc_of_0_95(environment, real_data, tmp_path):
    labels = ("--input", str(real_data / "fineweb_legal_annotated.parquet"), "--score-column", "legal_score")
    done = call(
        environment, "train-quality", *labels, "--threshold", "3", "--output", str(tmp_path / "model.bin"), "--json"
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["labels"], answer["held_out"]["documents"]) == (2_800, 560)
    assert answer["held_out"]["roc_auc"] >= 0.95
    assert answer == json.loads((tmp_path / "model.metrics.json").read_text()) | {"model": str(tmp_path / "model.bin")}
