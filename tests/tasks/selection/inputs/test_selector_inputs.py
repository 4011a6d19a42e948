"""What selectors read other than vectors and quality: only what each of them reads, row by row with its documents."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.quality.importance import NgramBuckets
from fineweb_mask.models.selection.inputs import SelectorInputs
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.fit import fit_targets
from fineweb_mask.tasks.selection.inputs.selector_inputs import read_inputs
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays
from tests.tasks.test_fit import EXAMPLES, job_of


@pytest.fixture
def targets(copied, tmp_path):
    pq.write_table(pa.Table.from_pylist(EXAMPLES), tmp_path / "examples.parquet")
    return fit_targets(job_of(copied, tmp_path / "examples.parquet"))


def read(built: Any, targets: Any, **settings: Any) -> SelectorInputs:
    chosen = PipelineSelectionSettings.model_validate({"device": "cpu"} | settings)
    return read_inputs(built.workspace, built.selection_shards, chosen, targets)


def test_a_solver_of_the_objective_reads_nothing_more(copied, targets):
    assert vars(read(copied, targets, solver="mean_field")) == vars(SelectorInputs())


def test_scores_and_groups_are_those_of_the_rows(copied):
    found, labels = (read(copied, None, solver=name, group_column="dump") for name in ("odis", "quadmix"))
    documents = pa.concat_tables([copied.read(file, columns=["dump"]) for file in copied.documents])
    scores = np.concatenate([np.full(file.rows, np.nan, dtype=np.float32) for file in copied.documents])
    start = 0
    for documents_file, scores_file in zip(copied.documents, copied.scores, strict=True):
        table = copied.read(scores_file)
        scores[start + table["row"].to_numpy()] = table["space"].to_numpy()
        start += documents_file.rows
    assert found.scores.keys() == {"space"}
    assert np.isnan(scores).sum() == 2  # duplicates have no score
    np.testing.assert_array_equal(found.scores["space"], scores)
    assert labels.groups is not None
    assert labels.groups.tolist() == [one or "" for one in documents["dump"].to_pylist()]
    rows = np.array([5, 2, 9])
    np.testing.assert_array_equal(found.take(rows).scores["space"], scores[rows])
    assert labels.take(rows).groups.tolist() == labels.groups[rows].tolist()
    assert found.take(rows).targets is None


def test_texts_are_weighed_by_the_ratios_of_their_n_grams(copied, targets, monkeypatch):
    monkeypatch.setattr("fineweb_mask.tasks.selection.inputs.selector_inputs.LEAST_TOKENS", 8)  # documents are short
    found = read(copied, targets, solver="dsir")
    texts = [text for file in copied.documents for text in copied.read(file, columns=["text"])["text"].to_pylist()]
    ratios = read_arrays(copied.workspace.resolve(targets))["log_ratios"]
    np.testing.assert_array_equal(found.log_weights, NgramBuckets().log_weights(texts, ratios, 8))
    part = read(copied, targets, solver="betr").take(np.array([0]))  # which compares vectors
    assert (part.targets.tasks.tolist(), part.log_weights) == ([0, 0, 1], None)
