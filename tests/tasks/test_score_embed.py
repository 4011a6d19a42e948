"""Scores and vectors from one forward pass: the same files as the two stages write, each rebuilt alone."""

from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.quality.transformer import EduScorer
from fineweb_mask.models.schemas import embeddings_schema, scores_schema
from fineweb_mask.models.settings import FROM_QUALITY, EmbeddingSettings
from fineweb_mask.models.settings.quality import ColumnScorerSettings, EduScorerSettings, QualitySettings
from fineweb_mask.tasks import score, score_embed
from fineweb_mask.tasks.inference.model_files import ModelNotFoundError, model_folder
from fineweb_mask.tasks.inference.scorers import load_models, resolve_model
from tests.tasks.jobs import score_embed_job

STATISTICS = {"space": (0.5, 0.1), "edu": (1.0, 2.0), "tokens": (20.0, 3.0)}


@pytest.fixture(scope="module")
def folder(built, save_regression_bert, tmp_path_factory):
    texts = [text for file in built.documents for text in built.read(file)["text"].to_pylist()]
    return save_regression_bert(tmp_path_factory.mktemp("edu") / "model", texts)


@pytest.fixture
def plan(copied, folder):
    def job(**embedding: Any) -> score_embed.ScoreEmbedJob:
        scorers = [
            copied.recipe.quality.scorers[0],
            EduScorerSettings(model=str(folder)),
            ColumnScorerSettings(name="tokens", column="token_count", weight=0.5),
        ]
        models = [*copied.models, *(resolve_model(settings) for settings in scorers[1:])]
        statistics = copied.statistics.model_copy(update={"details": {"statistics": STATISTICS}})
        return score_embed_job(
            copied.workspace,
            copied.documents[0],
            models,
            statistics,
            QualitySettings(scorers=scorers),
            EmbeddingSettings(model=FROM_QUALITY, **embedding),
        )

    return job


def edu_of(job: score_embed.ScoreEmbedJob) -> EduScorer:
    scorer = load_models(job.workspace, job.score.models)["edu"]
    assert isinstance(scorer, EduScorer)
    return scorer


def test_one_pass_writes_what_the_score_stage_and_the_encoder_give(copied, plan):
    job = plan(precision="float32")
    file = score_embed.score_embed(job)
    scores, vectors = job.files()
    assert (file.rows, file.bytes) == (scores.rows, scores.bytes + vectors.bytes)
    table, embeddings = copied.read(scores), copied.read(vectors)
    assert table.schema.equals(scores_schema(["space", "edu", "tokens"]))
    assert embeddings.schema.equals(embeddings_schema(32, "float32"))
    documents = copied.read(copied.documents[0])
    assert table["row"].equals(documents["row"])
    assert embeddings["row"].equals(documents["row"])
    assert vectors.details == {"bad_vectors": 0, "dimensions": 32}
    edu = edu_of(job)
    expected = edu.score_and_embed(edu.tokenise(documents["text"].to_pylist()))
    assert table["edu"].to_numpy().tobytes() == expected.scores.tobytes()
    assert table["tokens"].to_pylist() == documents["token_count"].to_pylist()
    found = np.stack(embeddings["embedding"].to_pylist()).astype(np.float32)
    assert found.tobytes() == expected.encoded.vectors.tobytes()

    together, written = job.score.output.read_bytes(), job.embed.output.read_bytes()
    for path in (job.score.output, job.embed.output):
        path.unlink()
    alone = score.score(job.score)
    assert job.score.output.read_bytes() == together
    at = job.score.output.stat().st_mtime_ns
    assert not score_embed.score_embed(job).cached  # whose scores are not scored again
    assert (job.score.output.stat().st_mtime_ns, job.files()[0].fingerprint) == (at, alone.fingerprint)
    assert job.embed.output.read_bytes() == written
    again = score_embed.score_embed(job)
    assert (again.cached, again.fingerprint) == (True, job.key.fingerprint)


def test_the_key_follows_what_either_file_depends_on(plan, copied):
    job = plan()
    assert job.key != plan(precision="float32").key
    space, edu, tokens = job.score.models
    shorter = edu.model_copy(update={"settings": edu.settings.model_copy(update={"max_tokens": 9})})
    other = tokens.model_copy(update={"fingerprint": "other"})
    for models, is_same in (([space, shorter, tokens], False), ([space, edu, other], True)):
        given = models, copied.statistics, job.score.settings, job.embed.settings
        changed = score_embed_job(copied.workspace, copied.documents[0], *given)
        assert (changed.embed.key == job.embed.key) == is_same
        assert changed.key != job.key


@pytest.mark.parametrize(("lost", "damage"), [("score", "delete"), ("embed", "truncate")])
def test_a_lost_file_is_rebuilt_alone_as_it_was(plan, lost, damage):
    job = plan()
    score_embed.score_embed(job)
    kept = {"score": job.embed, "embed": job.score}[lost].output
    gone = getattr(job, lost).output
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in (kept, gone)}
    if damage == "delete":
        gone.unlink()
    else:
        gone.write_bytes(gone.read_bytes()[:-9])
    assert job.current() is None
    assert not score_embed.score_embed(job).cached
    assert (kept.read_bytes(), kept.stat().st_mtime_ns) == before[kept]
    assert gone.read_bytes() == before[gone][0]


def test_a_bad_vector_is_null(plan, monkeypatch):
    job = plan()
    honest = EduScorer.score_and_embed

    def bad_row_2(self: EduScorer, tokens: Any) -> Any:
        found = honest(self, tokens)
        found.encoded.bad[2] = True
        return found

    monkeypatch.setattr(EduScorer, "score_and_embed", bad_row_2)
    score_embed.score_embed(job)
    assert job.embed.current().details["bad_vectors"] == 1
    vectors = pq.read_table(job.embed.output)["embedding"].to_pylist()
    assert [row for row, vector in enumerate(vectors) if vector is None] == [2]


def test_a_missing_folder_says_how_to_download_the_model_first(monkeypatch):
    from huggingface_hub import errors

    def offline(*_: Any, **__: Any) -> str:
        raise errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    message = r"scorer 'edu', model: 'a/b' is not a folder.* `hf download a/b`"
    with pytest.raises(ModelNotFoundError, match=message):
        resolve_model(EduScorerSettings(model="a/b"))
    with pytest.raises(ModelNotFoundError, match=r"embedding\.model: 'a/b' is not a folder.* `hf download a/b`"):
        model_folder(EmbeddingSettings(model="a/b").model, "embedding.model")
