"""`fineweb-mask select`: the options of the paper's script."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def test_select_takes_the_options_of_the_paper_s_script(invoke, tmp_path):
    features = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    quality = np.linspace(0, 1, 60, dtype=np.float32)
    table = pa.table({"chunk_id": range(60), "quality_score": quality, "feature_arr": list(features)})
    pq.write_table(table, tmp_path / "in.parquet")
    script = "--device cpu --n_epochs 5 --partial 0.2 --max_lr 10 --min_lr 1 --n_rollout 16 --init quality --lamb 0.5"
    files = ("--input", str(tmp_path / "in.parquet"), "--output", str(tmp_path / "out.parquet"))
    for algorithm in ("DiSF", "Facility", "Pair_simi"):
        arguments = (*files, *script.split(), "--select_ratio", "0.3", "--algorithm", algorithm, "--json", "--force")
        finished = invoke("select", *arguments)
        assert finished.exit_code == 0, finished.stderr
        assert json.loads(finished.stdout.splitlines()[-1])["selected"] == 18
        assert pq.read_table(tmp_path / "out.parquet").num_rows == 18
    finished = invoke("select", *files, "--solver", "mean_field", "--algorithm", "Pair_simi", "--json", "--force")
    result = json.loads(finished.stdout.splitlines()[-1])
    assert result["random_objective"] < result["objective"] <= result["upper_bound"]
    wrong = invoke("select", *files, "--lamb", "2")
    assert (wrong.exit_code, "lamb" in wrong.stderr) == (2, True)
