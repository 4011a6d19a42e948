"""Scores and vectors from one forward pass: the same files as the two stages write alone."""

from typing import Any

import numpy as np
import pytest

from fineweb_mask.models.schemas import embeddings_schema, scores_schema
from fineweb_mask.models.settings import FROM_QUALITY, EmbeddingSettings
from fineweb_mask.models.settings.quality import ColumnScorerSettings, EduScorerSettings, QualitySettings
from fineweb_mask.tasks import embed, score
from fineweb_mask.tasks.inference.model_files import ModelFolder, ModelNotFoundError
from fineweb_mask.tasks.inference.scorers import load_models, resolve_model
from tests.tasks.jobs import embed_job, score_job

STATISTICS = {"space": (0.5, 0.1), "edu": (1.0, 2.0), "tokens": (20.0, 3.0)}


@pytest.fixture(scope="module")
def folder(built, save_regression_bert, tmp_path_factory):
    texts = [text for file in built.documents for text in built.read(file)["text"].to_pylist()]
    return save_regression_bert(tmp_path_factory.mktemp("edu") / "model", texts)


@pytest.fixture
def plan(copied, folder):
    def job(**changes: Any) -> score.ScoreJob:
        scorers = [
            copied.recipe.quality.scorers[0],
            EduScorerSettings(model=str(folder)),
            ColumnScorerSettings(name="tokens", column="token_count", weight=0.5),
        ]
        models = [*copied.models, *(resolve_model(settings) for settings in scorers[1:])]
        statistics = copied.statistics.model_copy(update={"details": {"statistics": STATISTICS}})
        encoder = ModelFolder(path=str(folder), fingerprint=models[1].identity, scorer=scorers[1])
        embedding = EmbeddingSettings(model=FROM_QUALITY)
        shard = copied.documents[0]
        vectors = embed_job(copied.workspace, shard, encoder, embedding)
        job = score_job(copied.workspace, shard, models, statistics, QualitySettings(scorers=scorers), vectors=vectors)
        return job.model_copy(update=changes)

    return job


def test_one_pass_writes_the_scores_and_the_vectors_that_the_stages_write_alone(copied, plan):
    job = plan()
    scores = score.score(job)
    vectors = job.vectors.current()
    table, embeddings = copied.read(scores), copied.read(vectors)
    assert table.schema.equals(scores_schema(["space", "edu", "tokens"]))
    assert embeddings.schema.equals(embeddings_schema(32))
    documents = copied.read(copied.documents[0])
    assert table["row"].equals(documents["row"])
    assert embeddings["row"].equals(documents["row"])
    assert vectors.details == {"bad_vectors": 0, "dimensions": 32}
    edu = load_models(job.workspace, job.models)["edu"]
    own, wait = edu.score_and_encode(edu.tokenise(documents["text"].to_pylist()))
    assert table["edu"].to_numpy().tobytes() == own.tobytes()
    assert table["tokens"].to_pylist() == documents["token_count"].to_pylist()
    found = np.stack(embeddings["embedding"].to_pylist()).astype(np.float16)
    assert found.tobytes() == wait().vectors.astype(np.float16).tobytes()

    paths = job.output, job.vectors.output
    together = [path.read_bytes() for path in paths]
    for path, task, alone in zip(paths, (score.score, embed.embed), (job, job.vectors), strict=True):
        path.unlink()
        others = {other: other.stat().st_mtime_ns for other in paths if other != path}
        assert not task(alone).cached
        assert {other: other.stat().st_mtime_ns for other in others} == others  # what is current is not written again
    assert [path.read_bytes() for path in paths] == together
    assert score.score(job).cached
    assert plan(vectors=None).key == job.key


def test_the_key_of_the_vectors_follows_the_scorer_alone(plan):
    job = plan()
    edu = job.models[1].settings
    shorter = edu.model_copy(update={"max_tokens": 9})
    identity = job.models[1].model_copy(update={"settings": shorter}).identity
    assert identity != job.vectors.model.fingerprint == job.models[1].identity
    heavier = job.models[1].model_copy(update={"settings": edu.model_copy(update={"weight": 3.0})})
    assert heavier.identity == job.vectors.model.fingerprint


def test_a_missing_folder_says_how_to_download_the_model_first(monkeypatch):
    from huggingface_hub import errors

    def offline(*_: Any, **__: Any) -> str:
        raise errors.LocalEntryNotFoundError("no network")

    monkeypatch.setattr("huggingface_hub.snapshot_download", offline)
    message = r"quality\.scorers\.0\.model: 'a/b' is not a folder.* `hf download a/b`"
    with pytest.raises(ModelNotFoundError, match=message):
        resolve_model(EduScorerSettings(model="a/b"))
    with pytest.raises(ModelNotFoundError, match=r"embedding\.model: 'a/b' is not a folder.* `hf download a/b`"):
        embed.resolve_encoder(EmbeddingSettings(model="a/b"))
