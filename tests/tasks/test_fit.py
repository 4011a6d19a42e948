"""What is fitted on the corpus: the same every time, kept while the corpus grows."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.quality.importance import NgramBuckets, log_ratios
from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.models.settings.quality import FastTextScorerSettings, QualitySettings, SidecarScorerSettings
from fineweb_mask.models.settings.selection import TargetSettings
from fineweb_mask.tasks import fit
from fineweb_mask.tasks.fit import FitTargetsJob, fit_targets, fitted_on_other_files
from fineweb_mask.tasks.inference.model_files import ModelFolder, loaded_encoder
from fineweb_mask.tasks.inference.scorers import load_models, resolve_model
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.source.sidecars import Sidecars
from fineweb_mask.tasks.storage.atomic import remove_file, tree_files
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, read_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.conftest import sentence
from tests.tasks.jobs import classifier_job, encoder_job, sample_of, statistics_job


def contents(folder):
    return {file.relative_to(folder).as_posix(): file.read_bytes() for file in tree_files(folder)}


def test_the_classifier_is_the_same_bytes_every_time(tmp_path, scorer):
    jobs = [classifier_job(Workspace(tmp_path / name), scorer) for name in "ab"]
    first, second = map(fit.fit_classifier, jobs)
    written = contents(tmp_path / "a" / "fitted")
    assert written == contents(tmp_path / "b" / "fitted")
    assert written.keys() == {jobs[0].manifest_path.name, jobs[0].model_path(".bin").name}
    assert first.fingerprint == second.fingerprint
    assert first.details["rows"] == 40
    assert 0 < first.details["positive"] < 40
    with pytest.raises(ValueError, match="neither a model nor labels"):
        classifier_job(Workspace(tmp_path), FastTextScorerSettings(model="model.bin"))


def test_the_classifier_learns_its_labels_and_others_or_another_training_train_anew(built, labels, tmp_path, scorer):
    table = pq.read_table(labels.path)
    good = np.array(table["score"].to_pylist()) >= labels.threshold
    scores = load_models(built.workspace, built.models)["space"].score(table["text"].to_pylist())
    assert scores[good].mean() > scores[~good].mean()
    path = tmp_path / "labels.parquet"
    shutil.copy(labels.path, path)
    moved = scorer.model_copy(update={"labels": labels.model_copy(update={"path": str(path)})})
    jobs = [classifier_job(built.workspace, one) for one in (scorer, moved)]
    assert jobs[0].key == jobs[1].key
    pq.write_table(table.slice(0, 30), path)
    jobs += [classifier_job(built.workspace, one) for one in (moved, scorer.model_copy(update={"lowercase": True}))]
    assert len({job.key for job in jobs}) == 3


def test_statistics_are_the_scores_mean_and_deviation(built):
    job, texts = built.statistics_job, list[str]()
    for file, duplicates in zip(built.documents, job.duplicates, strict=True):
        repeated = set(duplicate_rows(built.workspace, duplicates).tolist())
        texts += [text for row, text in enumerate(built.read(file)["text"].to_pylist()) if row not in repeated]
    assert 2 < len(texts) < sum(file.rows for file in built.documents)
    scores = load_models(built.workspace, built.models)["space"].score(texts).astype(np.float64)
    mean, deviation = built.statistics.details["statistics"]["space"]
    assert mean == pytest.approx(scores.mean(), rel=1e-12)
    assert deviation == pytest.approx(scores.std(), rel=1e-12)
    assert built.statistics.details["rows"] == len(texts)
    for limit in (1, 7, len(texts), 10**6):  # an even sample
        step = -(-len(texts) // min(limit, len(texts)))
        assert list(job.sampled_texts(limit)) == texts[::step]


def test_a_fit_is_reused_while_the_corpus_grows_until_it_is_forced(copied):
    """Fitted on the first two shards, then asked for with all three."""
    few = copied.documents[:2]

    def encoder(documents):
        return encoder_job(copied.workspace, documents, copied.recipe.embedding)

    def statistics(documents):
        return statistics_job(copied.workspace, documents, copied.models, copied.recipe.quality)

    for plan, run in ((encoder, fit.fit_encoder), (statistics, fit.fit_statistics)):
        remove_file(plan(few).manifest_path)
        first = run(plan(few))
        assert not first.cached
        grown = run(plan(copied.documents))
        assert grown.cached
        assert grown.fingerprint == first.fingerprint
        again = run(plan(copied.documents).model_copy(update={"force": True}))
        assert not again.cached
        assert again.fingerprint != first.fingerprint
        assert (copied.workspace.root / first.path).exists()  # jobs may be reading it
        assert run(plan(copied.documents)) == again.model_copy(update={"cached": True, "seconds": 0.0})


def test_a_fit_of_another_corpus_is_made_again(copied):
    """One of whose shards none is in the corpus as it was: by name, or by what its documents were made from."""
    workspace, documents = copied.workspace, copied.documents
    job = encoder_job(workspace, documents[:1], copied.recipe.embedding)
    remove_file(job.manifest_path)
    fit.fit_encoder(job)
    renamed = [file.model_copy(update={"name": f"other-{file.name}"}) for file in documents]
    changed = [documents[0].model_copy(update={"fingerprint": "f"}), *documents[1:]]
    for corpus, is_kept in ((documents, True), (renamed, False), (changed, False), (documents[1:], False)):
        assert (encoder_job(workspace, corpus, copied.recipe.embedding).current() is not None) == is_kept
    assert fitted_on_other_files(workspace, [file.name for file in documents]) == ""
    assert not fit.fit_encoder(encoder_job(workspace, documents[1:], copied.recipe.embedding)).cached
    said = fitted_on_other_files(workspace, ["other"])
    assert said.startswith("another corpus than before: what was fitted on ")


def test_the_encoder_is_the_same_bytes_in_another_workspace_and_only_its_own_settings_refit_it(
    built, tmp_path, monkeypatch
):
    for folder in ("documents", "duplicates"):
        shutil.copytree(built.workspace.root / folder, tmp_path / folder)
    fit.fit_encoder(built.encoder_job.model_copy(update={"root": str(tmp_path)}))
    before = contents(built.workspace.fitted)
    assert contents(tmp_path / "fitted") == {name: one for name, one in before.items() if name.startswith("encoder")}

    def key(**changes):
        settings = EmbeddingSettings(**{"static_dimensions": 16} | changes)
        return encoder_job(built.workspace, built.documents, settings).key.settings

    assert key() == key(prompt="x", max_tokens=5) == built.encoder_job.key.settings
    assert key() != key(static_dimensions=8)
    assert built.encoder_job.current() is not None
    stage = built.encoder_job.stage
    monkeypatch.setattr(fit.FitEncoderJob, "stage", replace(stage, version=stage.version + 1))
    assert built.encoder_job.model_copy().current() is None  # a copy finds its key again


def test_statistics_of_groups_are_those_of_their_documents(copied):
    settings = copied.recipe.quality.model_copy(update={"by": "dump"})
    job = statistics_job(copied.workspace, copied.documents, copied.models, settings)
    job = job.model_copy(update={"group_documents": 10})
    ungrouped = statistics_job(copied.workspace, copied.documents, copied.models, copied.recipe.quality)
    heavier = copied.recipe.quality.scorers[0].model_copy(update={"weight": 3.0})
    weighted = QualitySettings(scorers=[heavier], combine="minimum")
    other = [model.model_copy(update={"fingerprint": "other"}) for model in copied.models]
    given = (copied.models, copied.recipe.quality), (copied.models, weighted), (other, weighted)
    key, same, of_others = (statistics_job(copied.workspace, copied.documents, *one).key for one in given)
    assert key == same != of_others
    assert job.key != key
    found = fit.fit_statistics(job).details
    assert found["statistics"] == fit.fit_statistics(ungrouped.model_copy(update={"force": True})).details["statistics"]
    tables = [copied.read(file).select(["dump", "text"]) for file in copied.documents]
    rows = [row for table in tables for row in table.to_pylist()]
    scorer = load_models(copied.workspace, copied.models)["space"]
    for dump in {row["dump"] for row in rows}:
        scores = scorer.score([row["text"] for row in rows if row["dump"] == dump]).astype(np.float64)
        assert found["by_group"][dump]["space"] == pytest.approx([scores.mean(), scores.std()], rel=1e-6)


def test_statistics_of_sidecars_leave_out_shards_without_one(copied, tmp_path):
    scorer = SidecarScorerSettings(path=f"{tmp_path}/{{shard}}.npy")
    rows = copied.documents[-1].details["rows_in"]
    np.save(tmp_path / "b.npy", np.arange(rows))
    files = Sidecars(scorer)
    settings = QualitySettings(scorers=[scorer])
    sidecars = {shard.name: {"sidecar": files.beside(shard)} for shard in copied.shards}
    job = statistics_job(copied.workspace, copied.documents, [resolve_model(scorer)], settings)
    found = fit.fit_statistics(job.model_copy(update={"sidecars": sidecars})).details
    annotated = copied.read(copied.documents[-1])["source_row"].to_numpy().astype(np.float64)
    assert found["rows"] == len(annotated)
    assert found["statistics"]["sidecar"] == pytest.approx([annotated.mean(), annotated.std()])
    (tmp_path / "b.npy").unlink()
    none = {name: {"sidecar": one["sidecar"].model_copy(update={"fingerprint": ""})} for name, one in sidecars.items()}
    with pytest.raises(BadShardError, match="no shard of the sample has the scores"):
        fit.fit_statistics(job.model_copy(update={"sidecars": none, "force": True}))


EXAMPLES = [
    {"text": sentence(100), "task": "space"},
    {"text": sentence(103), "task": "space"},
    {"text": "  ", "task": "empty"},
    {"text": sentence(101), "task": "sport"},
]


@pytest.fixture
def examples(tmp_path):
    path = tmp_path / "examples.parquet"
    pq.write_table(pa.Table.from_pylist(EXAMPLES), path)
    return path


def job_of(built, path, **settings):
    return FitTargetsJob(
        **sample_of(built.workspace, built.documents),
        files=find_files(str(path), "selection.targets.path"),
        settings=TargetSettings(path=str(path), **({"task_column": "task"} | settings)),
        embedding=built.recipe.embedding,
        encoder=ModelFolder(path=built.encoder.path, fingerprint=built.encoder.fingerprint),
    )


def test_examples_are_embedded_as_documents_are_and_keep_their_tasks(copied, examples):
    job = job_of(copied, examples)
    file = fit_targets(job)
    arrays = read_arrays(copied.workspace.resolve(file))
    assert file.details["tasks"] == ["space", "sport"]
    assert arrays["tasks"].tolist() == [0, 0, 1]
    texts = [one["text"] for one in EXAMPLES if one["text"].strip()]
    encoder = loaded_encoder(copied.workspace, job.encoder, job.embedding)
    np.testing.assert_allclose(arrays["vectors"], encoder.encode(texts).vectors, atol=1e-6)
    buckets = NgramBuckets()
    corpus = buckets.counts(job.sampled_texts(20_000))
    np.testing.assert_array_equal(arrays["log_ratios"], log_ratios(buckets.counts(texts), corpus))
    assert fit_targets(job_of(copied, examples).model_copy(update={"documents": copied.documents[:1]})).cached
    pq.write_table(pa.Table.from_pylist(EXAMPLES[:2]), examples)
    assert fit_targets(job_of(copied, examples)).details["tasks"] == ["space"]


def test_examples_have_a_column_of_texts_one_of_tasks_if_there_is_any_and_some_text(copied, examples, tmp_path):
    path, lines = tmp_path / "examples.jsonl", {"task_column": None}
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in (sentence(7), sentence(8))))
    arrays = read_arrays(copied.workspace.resolve(fit_targets(job_of(copied, path, **lines))))
    assert arrays["tasks"].tolist() == [0, 0]
    path.write_text('{"text": ""}\n')
    (tmp_path / "unnamed.jsonl").write_text('{"prompt": "words"}\n')
    for source, settings, message in (
        (tmp_path / "unnamed.jsonl", {"task_column": None}, r"no column 'text', rename one of \['prompt'\]"),
        (examples, {"task_column": "of"}, r"no column 'of', selection\.targets\.task_column may name"),
        (path, lines, r"selection\.targets\.path: .* holds no example"),
    ):
        with pytest.raises(BadShardError, match=message):
            fit_targets(job_of(copied, source, **settings))
