"""Selectors that read more than vectors and quality, and selections that go on elsewhere, in whole runs."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace


@pytest.mark.long
def test_targets_are_examples_of_what_is_wanted(finished, workspace, run_sample, sample_corpus, caplog):
    truth = pq.read_table(sample_corpus / "truth.parquet").to_pylist()
    topic_of = {one["id"]: one["topic"] for one in truth}
    documents = [
        one
        for path in sorted((sample_corpus / "corpus").glob("*.parquet"))
        for one in pq.read_table(path, columns=["id", "text"]).to_pylist()
    ]
    wanted = max(set(topic_of.values()) - {None, ""}, key=[topic_of.get(one["id"]) for one in documents].count)
    examples = [one["text"] for one in documents if topic_of.get(one["id"]) == wanted][:10]
    (workspace / "examples.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in examples))

    def share(folder: Path) -> float:
        files = (folder / "dataset" / "data").rglob("*.parquet")
        ids = [name for path in files for name in pq.read_table(path, columns=["id"])["id"].to_pylist()]
        return np.mean([topic_of.get(name) == wanted for name in ids])

    with caplog.at_level("WARNING"):
        run_sample(workspace, "selection.solver=betr", f"selection.targets.path={workspace / 'examples.jsonl'}")
    assert f"name {workspace / 'examples.jsonl'} in ingest.decontaminate, too" in caplog.text
    assert share(workspace) > 2 * share(finished)


def test_a_rule_goes_where_its_documents_were_not(workspace, run_sample, sample_corpus, tmp_path):
    rule, answers = tmp_path / "rule.safetensors", tmp_path / "answers.parquet"
    export = ["rule", "export", str(workspace), "--output", str(rule), "--json"]
    refused = CliRunner().invoke(app, export)
    assert refused.exit_code != 0
    assert "selection.metrics: facility reads documents with their neighbours" in refused.output
    run_sample(workspace, "selection.metrics=pairwise")
    exported = CliRunner().invoke(app, export)
    assert exported.exit_code == 0, exported.output
    source = str(sample_corpus / "corpus")
    command = ["rule", "apply", str(rule), source, "--workspace", str(workspace), "--output", str(answers), "--json"]
    applied = CliRunner().invoke(app, command)
    assert applied.exit_code == 0, applied.output
    found = json.loads(applied.stdout)
    assert found["documents"] == pq.read_table(answers).num_rows == 2000
    ratio = LastRun.load(Workspace(workspace)).settings.selection.select_ratio
    assert 0.5 < found["selected"] / (ratio * found["documents"]) < 2
