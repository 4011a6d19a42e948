"""Selectors that read more than vectors and quality, and selections that go on elsewhere, in whole runs."""

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest


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
        target = f"selection.targets.path={workspace / 'examples.jsonl'}"
        run_sample(workspace, "selection.solver=betr", target, until="materialize")
    assert f"name {workspace / 'examples.jsonl'} in ingest.decontaminate, too" in caplog.text
    assert share(workspace) > 2 * share(finished)
