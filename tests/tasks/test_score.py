"""Scores: row by row beside the documents, and what the scorer itself says."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from models.quality.combine import combine_scores
from models.quality.settings import QualitySettings
from models.schemas import scores_schema
from models.settings import IngestSettings, SourceSettings
from tasks import ingest, score
from tasks.quality_models import load_models
from tasks.source import discover
from tasks.stage import BadShardError


def test_scores_lie_row_by_row_beside_the_documents(built: Any) -> None:
    for documents, scores in zip(built.documents, built.scores, strict=True):
        table = built.read(scores)
        assert table.schema.equals(scores_schema(["space"]))
        assert table["row"].equals(built.read(documents)["row"])


def test_scores_are_what_the_scorer_says(built: Any) -> None:
    scorer = load_models(built.workspace, built.models)["space"]
    mean, deviation = built.statistics.details["statistics"]["space"]
    for documents, scores in zip(built.documents, built.scores, strict=True):
        table = built.read(scores)
        texts = built.read(documents)["text"].to_pylist()
        expected = np.array([scorer.score([text])[0] for text in texts])
        assert np.array_equal(table["space"].to_numpy(), expected)
        quality = ((expected.astype(np.float64) - mean) / deviation).astype(np.float32)
        assert np.array_equal(table["quality"].to_numpy(), quality)
        assert len(set(expected.tolist())) > len(texts) // 2


def test_two_scorers_are_combined(copied: Any) -> None:
    [model] = copied.models
    twin = model.model_copy(
        update={"settings": model.settings.model_copy(update={"name": "short", "max_chars": 40, "weight": -0.5})}
    )
    settings = QualitySettings(scorers=[model.settings, twin.settings], combine="weighted_sum")
    statistics = {"space": (0.1, 2.0), "short": (0.2, 4.0)}
    reference = copied.statistics.model_copy(update={"details": {"statistics": statistics}})
    job = score.plan(copied.workspace, copied.documents[0], [model, twin], reference, settings)
    table = copied.read(score.score(job))
    assert table.column_names == ["row", "space", "short", "quality"]
    columns = {name: table[name].to_numpy() for name in statistics}
    assert not np.array_equal(columns["space"], columns["short"])
    expected = combine_scores(columns, {"space": 1.0, "short": -0.5}, statistics, "weighted_sum")
    assert np.array_equal(table["quality"].to_numpy(), expected)


def test_equal_inputs_give_equal_bytes(built: Any, copied: Any) -> None:
    for file in copied.scores:
        assert file.reused
    path = copied.workspace.resolve(copied.scores[0])
    before = path.read_bytes()
    path.unlink()
    job = score.plan(copied.workspace, copied.documents[0], copied.models, copied.statistics, copied.recipe.quality)
    assert not score.score(job).reused
    assert path.read_bytes() == before == built.workspace.resolve(built.scores[0]).read_bytes()


def test_the_key_follows_documents_models_statistics_and_weights(built: Any) -> None:
    def key(**changes: Any) -> str:
        inputs = {
            "documents": built.documents[0],
            "models": built.models,
            "statistics": built.statistics,
            "settings": built.recipe.quality,
        }
        return score.plan(built.workspace, **inputs | changes).key.fingerprint

    [scorer] = built.recipe.quality.scorers
    heavier = built.recipe.quality.model_copy(update={"scorers": [scorer.model_copy(update={"weight": 2.0})]})
    keys = {
        key(),
        key(documents=built.documents[1]),
        key(models=[built.models[0].model_copy(update={"fingerprint": "other"})]),
        key(statistics=built.statistics.model_copy(update={"fingerprint": "other"})),
        key(settings=heavier),
        key(settings=built.recipe.quality.model_copy(update={"combine": "minimum"})),
    }
    assert len(keys) == 6
    sampled = built.recipe.quality.model_copy(update={"statistics_documents": 7})
    assert key(settings=sampled) == key()


def test_a_scorer_named_like_a_source_column_is_an_error(
    copied: Any, tmp_path: Path, make_parquet: Callable[..., Path], make_document: Callable[..., dict[str, Any]]
) -> None:
    path = make_parquet(tmp_path / "clash.parquet", [make_document(0, space=1.0)], (pa.field("space", pa.float32()),))
    source = SourceSettings(path=str(path))
    [shard] = discover(source)
    documents = ingest.ingest(ingest.plan(copied.workspace, shard, source, IngestSettings(min_chars=1)))
    job = score.plan(copied.workspace, documents, copied.models, copied.statistics, copied.recipe.quality)
    with pytest.raises(BadShardError, match="clash: the scorer 'space' has the name of a source column"):
        score.score(job)
    assert not job.output.exists()


def test_a_quality_that_is_not_finite_is_an_error(copied: Any) -> None:
    broken = copied.statistics.model_copy(update={"details": {"statistics": {"space": (float("nan"), 1.0)}}})
    job = score.plan(
        copied.workspace,
        copied.documents[0],
        copied.models,
        broken.model_copy(update={"fingerprint": "broken"}),
        copied.recipe.quality,
    )
    with pytest.raises(BadShardError, match="quality of row 0 is not finite"):
        score.score(job)


def test_an_empty_shard_has_empty_scores(copied: Any) -> None:
    empty = copied.documents[0].model_copy(update={"name": "empty", "path": "documents/empty.parquet", "rows": 0})
    import pyarrow.parquet as pq

    pq.write_table(copied.read(copied.documents[0]).slice(0, 0), copied.workspace.resolve(empty))
    job = score.plan(copied.workspace, empty, copied.models, copied.statistics, copied.recipe.quality)
    assert score.score(job).rows == 0
