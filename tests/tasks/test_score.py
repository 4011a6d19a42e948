"""Scores: row by row beside the documents, and what the scorer itself says."""

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
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
from fineweb_mask.tasks.source.sidecars import Sidecars
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows
from tests.tasks.jobs import ingest_job, score_job
from tests.tasks.source_files import discover


def test_scores_are_what_the_scorer_says_of_all_documents_but_duplicates(built):
    scorer = load_models(built.workspace, built.models)["space"]
    mean, deviation = built.statistics.details["statistics"]["space"]
    for shard in built.selection_shards:
        documents, table = shard.documents, built.read(shard.scores)
        assert table.schema.equals(scores_schema(["space"]))
        kept = np.setdiff1d(np.arange(documents.rows), duplicate_rows(built.workspace, shard.duplicates))
        assert table["row"].to_pylist() == kept.tolist()
        texts = built.read(documents)["text"].take(kept).to_pylist()
        expected = np.array([scorer.score([text])[0] for text in texts])
        assert np.array_equal(table["space"].to_numpy(), expected)
        quality = ((expected.astype(np.float64) - mean) / deviation).astype(np.float32)
        assert np.array_equal(table["quality"].to_numpy(), quality)
        assert len(set(expected.tolist())) > len(texts) // 2


def test_two_scorers_are_combined(copied):
    [model] = copied.models
    changes = {"name": "lower", "lowercase": True, "weight": -0.5}
    twin = model.model_copy(update={"settings": model.settings.model_copy(update=changes)})
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


def test_equal_inputs_give_equal_bytes_and_others_have_another_key(built, copied):
    [scorer] = built.recipe.quality.scorers
    given = {
        "documents": copied.documents[0],
        "models": copied.models,
        "statistics": copied.statistics,
        "settings": copied.recipe.quality,
    }
    broken = {"statistics": {"space": (float("nan"), 1.0)}}
    others = [
        {"documents": built.documents[1]},
        {"models": [built.models[0].model_copy(update={"fingerprint": "other"})]},
        {"statistics": built.statistics.model_copy(update={"fingerprint": "other", "details": broken})},
        {"settings": built.recipe.quality.model_copy(update={"scorers": [scorer.model_copy(update={"weight": 2.0})]})},
        {"settings": built.recipe.quality.model_copy(update={"combine": "minimum"})},
    ]
    jobs = [score_job(copied.workspace, **given | changes) for changes in ({}, *others)]
    assert len({job.key for job in jobs}) == 6
    path = copied.workspace.resolve(copied.scores[0])
    path.unlink()
    assert not score.score(jobs[0]).cached
    assert path.read_bytes() == built.workspace.resolve(built.scores[0]).read_bytes()
    with pytest.raises(BadShardError, match="quality of row 0 is not finite"):
        score.score(jobs[3])


def test_an_empty_shard_has_empty_scores(copied):
    empty = copied.documents[0].model_copy(update={"name": "empty", "path": "documents/empty.parquet", "rows": 0})
    pq.write_table(copied.read(copied.documents[0]).slice(0, 0), copied.workspace.resolve(empty))
    job = score_job(copied.workspace, empty, copied.models, copied.statistics, copied.recipe.quality)
    assert score.score(job).rows == 0
    by_column = QualitySettings(scorers=[ColumnScorerSettings(name="own", column="marks")])  # as lines without any
    models = [resolve_model(one) for one in by_column.scorers]
    statistics = copied.statistics.model_copy(update={"details": {"statistics": {"own": (0.0, 1.0)}}})
    assert score.score(score_job(copied.workspace, empty, models, statistics, by_column)).rows == 0


def test_a_column_of_the_source_is_a_score_and_one_that_is_none_is_an_error_that_names_it(
    copied, tmp_path, make_parquet, make_document
):
    marks = [(1.0, None), (2.0, 2.0), (3.0, None)]
    rows = [make_document(seed, score=score, some=some, grade="A") for seed, (score, some) in enumerate(marks)]
    extra = [pa.field("score", pa.float64()), pa.field("some", pa.float64()), pa.field("grade", pa.string())]
    path = make_parquet(tmp_path / "own.parquet", rows, tuple(extra))
    source = SourceSettings(path=str(path))
    [shard] = discover(source)
    documents = ingest.ingest(ingest_job(copied.workspace, shard, source, IngestSettings(min_chars=1)))

    def job(name: str = "own", **settings: Any) -> score.ScoreJob:
        model = resolve_model(ColumnScorerSettings(name=name, **settings))
        statistics = copied.statistics.model_copy(update={"details": {"statistics": {name: (1.0, 2.0)}}})
        return score_job(copied.workspace, documents, [model], statistics, QualitySettings(scorers=[model.settings]))

    table = copied.read(score.score(job(column="score")))
    assert table.schema.equals(scores_schema(["own"]))
    assert table["quality"].to_pylist() == [0.0, 0.5, 1.0]
    for settings, expected in (
        ({"column": "score"}, [1.0, 2.0, 3.0]),
        ({"column": "language_score"}, pytest.approx([0.9] * 3)),
        ({"column": "token_count"}, [20.0, 21.0, 22.0]),
        ({"column": "some", "missing": 0}, [0.0, 2.0, 0.0]),
        ({"column": "marks", "missing": 2}, [2.0] * 3),
    ):
        assert copied.read(score.score(job(**settings)))["own"].to_pylist() == expected
    for column, message in (
        ("marks", "own: no column 'marks' to take a score from: add it to the source"),
        ("grade", "own, row 0: the column 'grade' must hold numbers, its value is 'A'"),
        ("some", "own, row 0: the score 'own' is null or not finite in 2 of 3 rows"),
    ):
        with pytest.raises(BadShardError, match=message):
            score.score(job(column=column))
        assert not job(column=column).output.exists()
    with pytest.raises(BadShardError, match="own: the scorer 'grade' has the name of a source column"):
        score.score(job("grade", column="score"))


def test_the_identity_of_a_scorer_is_all_that_its_score_depends_on():
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


def test_annotations_belong_to_the_rows_that_were_kept_or_to_documents_by_their_ids(copied, tmp_path):
    """Shard b of the corpus holds a repeat and a text that is too short."""
    documents = copied.documents[-1]
    rows = documents.details["rows_in"]
    kept, ids = (copied.read(documents)[name].to_pylist() for name in ("source_row", "id"))
    assert documents.rows < rows

    def job(ending: str, **settings: Any) -> score.ScoreJob:
        scorer = SidecarScorerSettings(path=f"{tmp_path}/{{shard}}.{ending}", **settings)
        details = {"statistics": {"sidecar": (0.0, 1.0)}}
        statistics = copied.statistics.model_copy(update={"details": details})
        given = [resolve_model(scorer)], statistics, QualitySettings(scorers=[scorer])
        found = score_job(copied.workspace, documents, *given)
        files = Sidecars(scorer)
        return found.model_copy(update={"sidecars": {"sidecar": files.beside(copied.shards[-1])}})

    np.save(tmp_path / "b.npy", np.arange(rows) * 10)
    table = copied.read(score.score(job("npy")))
    assert table["sidecar"].to_pylist() == table["quality"].to_pylist() == [10.0 * row for row in kept]
    assert job("npy").current() is not None
    np.save(tmp_path / "b.npy", np.arange(documents.rows))
    assert job("npy").current() is None
    with pytest.raises(BadShardError, match=f"b.npy has {documents.rows} rows, its source file {rows}"):
        score.score(job("npy"))
    lines = [json.dumps({"id": name, "score": place}) for place, name in enumerate(ids)]
    (tmp_path / "b.jsonl").write_text("\n".join(reversed(lines)))
    file = score.score(job("jsonl", field="score"))
    assert copied.read(file)["sidecar"].to_pylist() == list(range(len(ids)))
    assert file.details["sidecars"] == {"sidecar": "id"}
    (tmp_path / "b.jsonl").write_text("\n".join([*lines, lines[0]]))
    with pytest.raises(BadShardError, match=f"in more than one row: {ids[0]}"):
        score.score(job("jsonl", field="score"))


def test_scores_are_standardised_by_the_group_s_statistics(copied):
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
