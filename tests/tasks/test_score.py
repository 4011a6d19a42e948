"""Scores: row by row beside the documents, and what the scorer itself says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.quality.combine import combine_scores
from fineweb_mask.models.schemas import scores_schema
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.models.settings.quality import (
    ColumnScorerSettings,
    EduScorerSettings,
    FastTextScorerSettings,
    QualitySettings,
    SidecarScorerSettings,
)
from fineweb_mask.tasks import ingest, score
from fineweb_mask.tasks.inference.scorers import QualityModel, load_models, resolve_model
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.source.sidecars import Sidecars
from fineweb_mask.tasks.workspace.job import BadShardError
from tests.tasks.jobs import ingest_job, score_job


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
        update={"settings": model.settings.model_copy(update={"name": "lower", "lowercase": True, "weight": -0.5})}
    )
    settings = QualitySettings(scorers=[model.settings, twin.settings], combine="weighted_sum")
    statistics = {"space": (0.1, 2.0), "lower": (0.2, 4.0)}
    reference = copied.statistics.model_copy(update={"details": {"statistics": statistics}})
    job = score_job(copied.workspace, copied.documents[0], [model, twin], reference, settings)
    table = copied.read(score.score(job))
    assert table.column_names == ["row", "space", "lower", "quality"]
    columns = {name: table[name].to_numpy() for name in statistics}
    assert not np.array_equal(columns["space"], columns["lower"])
    expected = combine_scores(columns, {"space": 1.0, "lower": -0.5}, statistics, "weighted_sum")
    assert np.array_equal(table["quality"].to_numpy(), expected)


def test_equal_inputs_give_equal_bytes(built: Any, copied: Any) -> None:
    for file in copied.scores:
        assert file.cached
    path = copied.workspace.resolve(copied.scores[0])
    before = path.read_bytes()
    path.unlink()
    job = score_job(copied.workspace, copied.documents[0], copied.models, copied.statistics, copied.recipe.quality)
    assert not score.score(job).cached
    assert path.read_bytes() == before == built.workspace.resolve(built.scores[0]).read_bytes()


def test_the_key_follows_documents_models_statistics_and_weights(built: Any) -> None:
    def key(**changes: Any) -> str:
        inputs = {
            "documents": built.documents[0],
            "models": built.models,
            "statistics": built.statistics,
            "settings": built.recipe.quality,
        }
        return score_job(built.workspace, **inputs | changes).key.fingerprint

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


def test_a_scorer_named_like_a_source_column_is_an_error(
    copied: Any, tmp_path: Path, make_parquet: Callable[..., Path], make_document: Callable[..., dict[str, Any]]
) -> None:
    path = make_parquet(tmp_path / "clash.parquet", [make_document(0, space=1.0)], (pa.field("space", pa.float32()),))
    source = SourceSettings(path=str(path))
    [shard] = discover(source)
    documents = ingest.ingest(ingest_job(copied.workspace, shard, source, IngestSettings(min_chars=1)))
    job = score_job(copied.workspace, documents, copied.models, copied.statistics, copied.recipe.quality)
    with pytest.raises(BadShardError, match="clash: the scorer 'space' has the name of a source column"):
        score.score(job)
    assert not job.output.exists()


def test_a_quality_that_is_not_finite_is_an_error(copied: Any) -> None:
    broken = copied.statistics.model_copy(update={"details": {"statistics": {"space": (float("nan"), 1.0)}}})
    job = score_job(
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
    job = score_job(copied.workspace, empty, copied.models, copied.statistics, copied.recipe.quality)
    assert score.score(job).rows == 0
    by_column = QualitySettings(scorers=[ColumnScorerSettings(name="own", column="marks")])  # as lines without any
    models = [resolve_model(one) for one in by_column.scorers]
    statistics = copied.statistics.model_copy(update={"details": {"statistics": {"own": (0.0, 1.0)}}})
    assert score.score(score_job(copied.workspace, empty, models, statistics, by_column)).rows == 0


def scored(
    copied: Any, tmp_path: Path, make_parquet: Any, rows: list[dict[str, Any]], extra: tuple[pa.Field, ...]
) -> Callable[..., score.ScoreJob]:
    """Return the job that scores a shard of these rows with a column scorer, given the settings and the statistics."""
    path = make_parquet(tmp_path / "own.parquet", rows, extra)
    source = SourceSettings(path=str(path))
    [shard] = discover(source)
    documents = ingest.ingest(ingest_job(copied.workspace, shard, source, IngestSettings(min_chars=1)))

    def job(**settings: Any) -> score.ScoreJob:
        model = resolve_model(ColumnScorerSettings(name="own", **settings))
        statistics = copied.statistics.model_copy(update={"details": {"statistics": {"own": (1.0, 2.0)}}})
        return score_job(copied.workspace, documents, [model], statistics, QualitySettings(scorers=[model.settings]))

    return job


def test_a_column_of_the_source_is_a_score(
    copied: Any, tmp_path: Path, make_parquet: Callable[..., Path], make_document: Callable[..., dict[str, Any]]
) -> None:
    rows = [make_document(seed, score=float(seed), language_score=0.5 + seed / 10) for seed in range(4)]
    job = scored(copied, tmp_path, make_parquet, rows, (pa.field("score", pa.float64()),))
    table = copied.read(score.score(job(column="score")))
    assert table.schema.equals(scores_schema(["own"]))
    assert table["own"].to_pylist() == [0.0, 1.0, 2.0, 3.0]
    assert table["quality"].to_pylist() == [-0.5, 0.0, 0.5, 1.0]
    table = copied.read(score.score(job(column="language_score")))
    assert table["own"].to_pylist() == pytest.approx([0.5, 0.6, 0.7, 0.8])
    assert copied.read(score.score(job(column="token_count")))["own"].to_pylist() == [20.0, 21.0, 22.0, 23.0]


def test_a_column_that_is_no_score_is_an_error_that_names_it(
    copied: Any, tmp_path: Path, make_parquet: Callable[..., Path], make_document: Callable[..., dict[str, Any]]
) -> None:
    rows = [make_document(seed, score=[1.0, None, 2.0][seed], grade="A") for seed in range(3)]
    extra = (pa.field("score", pa.float64()), pa.field("grade", pa.string()))
    job = scored(copied, tmp_path, make_parquet, rows, extra)
    with pytest.raises(BadShardError, match="own: no column 'marks' to take a score from: add it to the source"):
        score.score(job(column="marks"))
    assert copied.read(score.score(job(column="marks", missing=2)))["own"].to_pylist() == [2.0] * 3
    with pytest.raises(BadShardError, match="own, row 0: the column 'grade' must hold numbers, its value is 'A'"):
        score.score(job(column="grade"))
    with pytest.raises(BadShardError, match="own, row 1: the column 'score' is null or not finite in 1 of 3 rows"):
        score.score(job(column="score"))
    assert not job(column="score").output.exists()
    table = copied.read(score.score(job(column="score", missing=0)))
    assert table["own"].to_pylist() == [1.0, 0.0, 2.0]


def test_the_identity_of_a_scorer_is_all_that_its_score_depends_on() -> None:
    def column(**changes: Any) -> str:
        return resolve_model(ColumnScorerSettings(**{"column": "score"} | changes)).identity

    assert column() == column(weight=3)
    assert len({column(), column(column="other"), column(missing=0), column(name="x")}) == 4

    def edu(**changes: Any) -> str:
        return QualityModel(settings=EduScorerSettings(**changes), path="p", fingerprint="a").identity

    assert edu() == edu(weight=3) == edu(model="elsewhere")
    assert len({edu(), edu(max_tokens=9), edu(name="x")}) == 3

    def fasttext(**changes: Any) -> str:
        settings = FastTextScorerSettings(**{"model": "m.bin"} | changes)
        return QualityModel(settings=settings, path="p", fingerprint="a").identity

    assert fasttext() == fasttext(model="elsewhere.bin") == fasttext(weight=-1)
    choices = ({}, {"lowercase": True}, {"positive_label": "__label__hq"})
    assert len({fasttext(**choice) for choice in choices}) == 3


def sidecar_job(built: Any, files: Sidecars, documents: Any, shard: Any, settings: QualitySettings) -> score.ScoreJob:
    [model] = [resolve_model(scorer) for scorer in settings.scorers]
    sidecars = {"sidecar": files.beside(shard)}
    reference = built.statistics.model_copy(update={"details": {"statistics": {"sidecar": (0.0, 1.0)}}})
    job = score_job(built.workspace, documents, [model], reference, settings)
    return job.model_copy(update={"sidecars": sidecars})


def test_annotations_of_rows_that_were_dropped_are_skipped(copied: Any, tmp_path: Path) -> None:
    """Shard b of the corpus holds a repeat and a text that is too short."""
    scorer = SidecarScorerSettings(path=f"{tmp_path}/{{shard}}.npy")
    settings = QualitySettings(scorers=[scorer])
    shard, documents = copied.shards[-1], copied.documents[-1]
    rows = documents.details["rows_in"]
    assert documents.rows < rows
    np.save(tmp_path / "b.npy", np.arange(rows) * 10)
    job = sidecar_job(copied, Sidecars(scorer, by_content=True), documents, shard, settings)
    table = copied.read(score.score(job))
    expected = (copied.read(documents)["source_row"].to_numpy() * 10.0).tolist()
    assert table["sidecar"].to_pylist() == table["quality"].to_pylist() == expected
    assert job.current() is not None

    np.save(tmp_path / "b.npy", np.arange(documents.rows))
    job = sidecar_job(copied, Sidecars(scorer, by_content=True), documents, shard, settings)
    assert job.current() is None
    with pytest.raises(BadShardError, match=f"b.npy has {documents.rows} rows, its source file {rows}"):
        score.score(job)


def test_annotations_in_another_order_belong_to_documents_by_their_ids(copied: Any, tmp_path: Path) -> None:
    scorer = SidecarScorerSettings(path=f"{tmp_path}/{{shard}}.jsonl", field="score")
    documents = copied.documents[-1]
    ids = copied.read(documents)["id"].to_pylist()
    lines = [json.dumps({"id": name, "score": place}) for place, name in enumerate(ids)]
    for order, message in ((reversed(lines), None), ([*lines, lines[0]], f"in more than one row: {ids[0]}")):
        (tmp_path / "b.jsonl").write_text("\n".join(order))
        files = Sidecars(scorer, by_content=True)
        job = sidecar_job(copied, files, documents, copied.shards[-1], QualitySettings(scorers=[scorer]))
        if message is None:
            file = score.score(job)
            assert copied.read(file)["sidecar"].to_pylist() == list(range(len(ids)))
            assert file.details["sidecars"] == {"sidecar": "id"}
        else:
            with pytest.raises(BadShardError, match=message):
                score.score(job)


def test_scores_are_standardised_by_the_group_s_statistics(copied: Any) -> None:
    [model] = copied.models
    settings = copied.recipe.quality.model_copy(update={"by": "dump"})
    details = {"statistics": {"space": (0.0, 1.0)}, "by_group": {"CC-MAIN-2024-10": {"space": (5.0, 2.0)}}}
    statistics = copied.statistics.model_copy(update={"details": details})
    job = score_job(copied.workspace, copied.documents[0], [model], statistics, settings)
    plain = score_job(copied.workspace, copied.documents[0], [model], statistics, copied.recipe.quality)
    assert job.key != plain.key
    table = copied.read(score.score(job))
    own = np.array(copied.read(copied.documents[0])["dump"].to_pylist()) == "CC-MAIN-2024-10"
    assert 0 < own.sum() < len(own)
    scores = table["space"].to_numpy()
    np.testing.assert_allclose(table["quality"].to_numpy(), np.where(own, (scores - 5) / 2, scores), rtol=1e-5)
