"""The stages tell how far they are within a shard."""

from collections import defaultdict

import pytest

from fineweb_mask.models.runtime import progress
from fineweb_mask.models.runtime.progress import Step, reporting_to
from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.tasks import score
from fineweb_mask.tasks.processes.workers import end_workers
from tests.tasks.jobs import score_job


def test_every_document_of_a_stage_is_told(recipe, pipeline, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    heard: dict[str, list[Step]] = defaultdict(list)

    def hear(share, steps):
        assert 0 <= share <= 1
        for step in steps:
            assert 0 <= step.done <= step.total
            heard[step.what].append(step)

    with reporting_to(hear):
        built = pipeline(recipe.model_copy(update={"workspace": str(tmp_path / "workspace")}))
    ended = [step.total for step in heard["documents"] if step.done == step.total]
    read = [file.details["rows_in"] for file in built.documents if file.details["rows_in"] > 1]
    kept = [file.rows for file in built.scores if file.rows > 1]
    assert sorted(ended) == sorted([*read, *kept, *kept])  # ingest, score, embed
    fitted_on = sum(file.rows for file in built.scores)
    assert heard["documents of the sample"][-1] == Step("documents of the sample", fitted_on, fitted_on)
    rows = sum(file.rows for file in built.documents)
    assert heard["documents read"][-1] == Step("documents read", rows, rows)


def test_scoring_in_processes_is_told_and_hears_a_request_to_stop(copied, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    monkeypatch.setattr(score, "BATCH_ROWS", 5)
    documents = copied.documents[0]
    path = copied.workspace.resolve(copied.scores[0])
    expected = path.read_bytes()
    job = score_job(copied.workspace, documents, copied.models, copied.statistics, copied.recipe.quality, 2)
    heard: list[tuple[float, tuple[Step, ...]]] = []
    path.unlink()
    with reporting_to(lambda share, steps: heard.append((share, steps))):
        score.score(job)
    assert heard[-1] == (1.0, (Step("documents", documents.rows, documents.rows),))
    assert len({share for share, _ in heard}) > 2

    path.unlink()
    try:
        with reporting_to(lambda *_: request_stop()), pytest.raises(StoppedError):
            score.score(job)
    finally:
        clear_stop_request()
    score.score(job)
    assert path.read_bytes() == expected  # the workers are as good as before
    end_workers()
