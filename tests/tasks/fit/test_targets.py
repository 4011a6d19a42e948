"""Target examples: embedded by the encoder of the documents, with the log ratios of their n-grams."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.quality.importance import NgramBuckets, log_ratios
from fineweb_mask.models.settings.selectors.options import TargetSettings
from fineweb_mask.tasks import embed
from fineweb_mask.tasks.fit.job import sampled_texts
from fineweb_mask.tasks.fit.targets import FitTargetsJob, fit_targets
from fineweb_mask.tasks.inference.encoder_pool import load_copy
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays
from tests.tasks.conftest import sentence

EXAMPLES = [
    {"question": sentence(100), "task": "space"},
    {"question": sentence(103), "task": "space"},
    {"question": "  ", "task": "empty"},
    {"question": sentence(101), "task": "sport"},
]


@pytest.fixture
def examples(tmp_path: Path) -> Path:
    path = tmp_path / "examples.parquet"
    pq.write_table(pa.Table.from_pylist(EXAMPLES), path)
    return path


def job_of(built: Any, path: Path, **settings: Any) -> FitTargetsJob:
    encoder = embed.fitted_model(built.encoder)
    return FitTargetsJob(
        root=str(built.workspace.root),
        documents=built.documents,
        files=find_files(str(path), "selection.targets.path"),
        settings=TargetSettings(path=str(path), **({"text_column": "question", "task_column": "task"} | settings)),
        embedding=built.recipe.embedding,
        encoder=encoder.path,
        encoder_fingerprint=encoder.fingerprint,
    )


def test_examples_are_embedded_as_documents_are_and_keep_their_tasks(copied: Any, examples: Path) -> None:
    file = fit_targets(job_of(copied, examples))
    arrays = read_arrays(copied.workspace.resolve(file))
    assert file.details["tasks"] == ["space", "sport"]
    assert arrays["tasks"].tolist() == [0, 0, 1]
    texts = [one["question"] for one in EXAMPLES if one["question"].strip()]
    encoder = load_copy(str(copied.workspace.local(copied.encoder.path)), copied.recipe.embedding, "cpu")
    np.testing.assert_allclose(arrays["vectors"], encoder.encode(texts).vectors, atol=1e-6)
    buckets = NgramBuckets()
    corpus = buckets.counts(sampled_texts(copied.workspace, copied.documents, 20_000)())
    np.testing.assert_array_equal(arrays["log_ratios"], log_ratios(buckets.counts(texts), corpus))


def test_they_are_found_again_and_kept_while_the_corpus_grows(copied: Any, examples: Path) -> None:
    job = job_of(copied, examples)
    first = fit_targets(job)
    assert fit_targets(job).cached
    assert fit_targets(job.model_copy(update={"documents": copied.documents[:1]})).fingerprint == first.fingerprint
    pq.write_table(pa.Table.from_pylist(EXAMPLES[:2]), examples)
    changed = fit_targets(job_of(copied, examples))
    assert not changed.cached
    assert changed.details["tasks"] == ["space"]


def test_examples_without_a_task_column_are_of_one_task(copied: Any, tmp_path: Path) -> None:
    path = tmp_path / "examples.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in (sentence(7), sentence(8))))
    arrays = read_arrays(
        copied.workspace.resolve(fit_targets(job_of(copied, path, text_column="text", task_column=None)))
    )
    assert arrays["tasks"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text_column": "prompt"}, r"selection\.targets\.text_column"),
        ({"task_column": "of"}, r"no column 'of', selection\.targets\.task_column may name"),
    ],
)
def test_a_column_that_is_missing_is_named_by_its_setting(
    copied: Any, examples: Path, settings: Any, message: str
) -> None:
    with pytest.raises(BadShardError, match=message):
        fit_targets(job_of(copied, examples, **settings))


def test_a_file_without_texts_is_refused(copied: Any, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text('{"text": ""}\n')
    with pytest.raises(BadShardError, match=r"selection\.targets\.path: .* holds no example"):
        fit_targets(job_of(copied, path, text_column="text", task_column=None))
