"""What selectors read besides vectors and quality: only what each of them reads, row by row with its documents."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from fineweb_mask.models.embedding.arrow import vectors_of
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.quality.importance import NgramBuckets, log_ratios
from fineweb_mask.models.selection.inputs import SelectorInputs
from fineweb_mask.models.selection.selectors.clusters import solve_quad
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.quality import EduScorerSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.fit.job import sampled_texts
from fineweb_mask.tasks.fit.models import fit_targets
from fineweb_mask.tasks.inference.scorers import QualityModel, load_models, resolve_model
from fineweb_mask.tasks.select import SelectJob, select
from fineweb_mask.tasks.selection.inputs.selector_inputs import EarlierSelection, FewScores, read_inputs
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.fit.test_models import EXAMPLES, job_of


@pytest.fixture
def targets(copied: Any, tmp_path: Path) -> Any:
    pq.write_table(pa.Table.from_pylist(EXAMPLES), tmp_path / "examples.parquet")
    return fit_targets(job_of(copied, tmp_path / "examples.parquet"))


def read(built: Any, targets: Any, **settings: Any) -> SelectorInputs:
    chosen = PipelineSelectionSettings.model_validate({"device": "cpu"} | settings)
    return read_inputs(built.workspace, built.selection_shards, chosen, targets)


def test_a_solver_of_the_objective_reads_nothing_more(copied: Any, targets: Any) -> None:
    assert vars(read(copied, targets, solver="mean_field")) == vars(SelectorInputs())


def test_scores_and_groups_are_those_of_the_rows(copied: Any) -> None:
    found = read(copied, None, solver="quadmix", group_column="dump")
    documents = pa.concat_tables([copied.read(file, columns=["dump"]) for file in copied.documents])
    scores = pa.concat_tables([copied.read(file, columns=["space"]) for file in copied.scores])
    assert found.scores.keys() == {"space"}
    np.testing.assert_array_equal(found.scores["space"], scores["space"].to_numpy())
    assert found.groups is not None
    assert found.groups.tolist() == [one or "" for one in documents["dump"].to_pylist()]
    rows = np.array([5, 2, 9])
    part = found.take(rows)
    np.testing.assert_array_equal(part.scores["space"], scores["space"].to_numpy()[rows])
    assert part.groups.tolist() == found.groups[rows].tolist()
    assert part.targets is None


def test_texts_are_weighed_by_the_ratios_of_their_n_grams(
    copied: Any, targets: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fineweb_mask.tasks.selection.inputs.selector_inputs.LEAST_TOKENS", 8)  # documents are short
    found = read(copied, targets, solver="dsir")
    texts = [text for file in copied.documents for text in copied.read(file, columns=["text"])["text"].to_pylist()]
    ratios = read_arrays(copied.workspace.resolve(targets))["log_ratios"]
    np.testing.assert_array_equal(found.log_weights, NgramBuckets().log_weights(texts, ratios, 8))


def test_texts_are_weighed_for_each_task(copied: Any, targets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fineweb_mask.tasks.selection.inputs.selector_inputs.LEAST_TOKENS", 8)  # documents are short
    found = read(copied, targets, solver="dsir", dsir={"by_task": True})
    assert found.log_weights is not None
    assert found.task_examples is not None
    assert found.task_examples.tolist() == [2, 1]
    texts = [text for file in copied.documents for text in copied.read(file, columns=["text"])["text"].to_pylist()]
    buckets = NgramBuckets()
    corpus = buckets.counts(sampled_texts(copied.workspace, copied.documents, 20_000)())
    for place, task in enumerate(["space", "sport"]):
        own = buckets.counts(one["question"] for one in EXAMPLES if one["task"] == task)
        expected = buckets.log_weights(texts, log_ratios(own, corpus), 8)
        np.testing.assert_allclose(found.log_weights[:, place], expected, rtol=1e-5)


def test_targets_are_read_by_those_that_compare_vectors(copied: Any, targets: Any) -> None:
    part = read(copied, targets, solver="betr").take(np.array([0]))
    assert part.targets is not None
    assert part.targets.tasks.tolist() == [0, 0, 1]
    assert part.log_weights is None


@pytest.fixture
def earlier(copied: Any) -> Path:
    """A finished workspace: with a catalog, and the record of its run."""
    masks = {file.name: file for file in copied.masks}
    shards = [shard.model_copy(update={"masks": masks[shard.name]}) for shard in copied.selection_shards]
    write_catalog(copied.workspace, shards)
    LastRun(settings=copied.recipe, folder=str(Path.cwd())).save(copied.workspace)
    return Path(copied.workspace.root)


def recipe_with(built: Any, path: Path, model: str | None = None) -> Any:
    encoder = model or str(built.workspace.local(built.encoder.path))
    given = built.recipe.selection.model_dump() | {"given": {"path": str(path)}}
    changes = {
        "workspace": "newer",
        "selection": PipelineSelectionSettings.model_validate(given),
        "embedding": built.recipe.embedding.model_copy(update={"model": encoder}),
    }
    return built.recipe.model_copy(update=changes)


def test_the_selected_documents_are_read_with_their_vectors_and_quality(copied: Any, earlier: Path) -> None:
    found = EarlierSelection.of(recipe_with(copied, earlier))
    assert found is not None
    vectors, quality = found.read()
    masks = pa.concat_tables([copied.read(file) for file in copied.masks])["selected"].to_numpy()
    tables = [copied.read(file, columns=["embedding"]) for file in copied.embeddings]
    np.testing.assert_array_equal(vectors, vectors_of(pa.concat_tables(tables))[0][masks])
    scores = pa.concat_tables([copied.read(file, columns=["quality"]) for file in copied.scores])["quality"]
    np.testing.assert_array_equal(quality, scores.to_numpy()[masks])
    assert EarlierSelection.of(copied.recipe) is None


def test_a_selection_given_an_earlier_one_takes_none_of_its_documents_again(copied: Any, earlier: Path) -> None:
    """The same documents once more: each of the earlier ones now has a near-duplicate that is held."""
    recipe = recipe_with(copied, earlier)
    found = EarlierSelection.of(recipe)
    plain, given = (
        SelectJob(root=str(copied.workspace.root), shards=job.shards, settings=settings, given=one)
        for job in copied.select_jobs[:1]
        for settings, one in ((copied.recipe.selection, None), (recipe.selection, found))
    )
    assert plain.key != given.key
    assert plain.settings_read() == given.settings_read()  # the path is not part of the key, what is in it is
    before = np.concatenate([copied.read(file)["selected"].to_numpy() for file in copied.masks[: len(given.shards)]])
    block, *_ = select(given).details["blocks"]
    files = given.shard_files() or []
    after = np.concatenate([copied.read(file)["selected"].to_numpy() for file in files])
    assert not (before & after).any()
    assert after.sum() > 0
    assert block["objective"] <= block["upper_bound"] + 1e-6


def test_what_is_no_selection_of_this_encoder_is_refused(copied: Any, earlier: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"selection\.given\.path: .* must be a local workspace with a selection"):
        EarlierSelection.of(recipe_with(copied, tmp_path / "nowhere"))
    own = recipe_with(copied, earlier).model_copy(update={"workspace": str(earlier)})
    with pytest.raises(SettingsError, match=r"selection\.given\.path: .* is the recipe's own workspace"):
        EarlierSelection.of(own)
    with pytest.raises(SettingsError, match=r"by the encoder that was fitted there: set embedding.model to '.*encoder"):
        EarlierSelection.of(recipe_with(copied, earlier, "static"))
    moved = tmp_path / "moved"
    shutil.copytree(earlier, moved)
    there = LastRun.load(copied.workspace).settings
    other = there.model_copy(update={"embedding": there.embedding.model_copy(update={"model": "some/model"})})
    LastRun(settings=other, folder="/").save(Workspace(moved))
    with pytest.raises(SettingsError, match=r"made by 'some/model', this recipe's by .*: set embedding.model to"):
        EarlierSelection.of(recipe_with(copied, moved))


@pytest.mark.parametrize(
    "settings",
    [{"solver": "random"}, {"scope": "global"}, {"budget_by": "tokens"}, {"near_duplicates": {"forbid": True}}],
)
def test_settings_that_know_no_earlier_selection_are_refused_by_name(settings: Any) -> None:
    [(name, _)] = settings.items()
    with pytest.raises(ValidationError, match=rf"given: an earlier selection needs .*{name}"):
        PipelineSelectionSettings.model_validate(settings | {"given": {"path": "older"}})


def texts_of(built: Any) -> list[str]:
    return [text for file in built.documents for text in built.read(file, columns=["text"])["text"].to_pylist()]


@pytest.fixture
def model(copied: Any, save_regression_bert: Callable[..., Path], tmp_path: Path) -> QualityModel:
    folder = save_regression_bert(tmp_path / "edu", texts_of(copied))
    return resolve_model(EduScorerSettings(model=str(folder)))


def test_any_rows_of_the_group_get_the_scores_of_their_texts(copied: Any, model: QualityModel) -> None:
    texts = texts_of(copied)
    [scorer] = load_models(copied.workspace, [model]).values()
    rows = np.random.default_rng(0).permutation(len(texts))[:20]
    found = FewScores(copied.workspace, copied.selection_shards, model).of(rows)
    np.testing.assert_allclose(found, scorer.score([texts[row] for row in rows]), atol=1e-5)
    names = {one.name for one in copied.workspace.cache.iterdir()}
    assert names <= {"ledger"}  # which the report made; the copy of the texts has no name


def test_quad_selects_by_it_and_the_masks_depend_on_the_model(
    copied: Any, model: QualityModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(SELECTORS["quad"], solve=partial(solve_quad, n_clusters=4, batch=2))
    monkeypatch.setitem(SELECTORS, "quad", few)
    settings = PipelineSelectionSettings.model_validate(
        {"solver": "quad", "select_ratio": 0.1, "device": "cpu", "near_duplicates": {"weight": 0}}
    )
    job = SelectJob(root=str(copied.workspace.root), shards=copied.selection_shards, settings=settings)
    by_model = job.model_copy(update={"scorer": model})
    file = select(by_model)
    [block] = file.details["blocks"]
    assert block["selected"] <= block["scored"] < block["documents"]
    assert by_model.key.fingerprint != job.key.fingerprint
    moved = model.model_copy(update={"path": "elsewhere", "settings": model.settings.model_copy(update={"model": "b"})})
    assert job.model_copy(update={"scorer": moved}).key.fingerprint == by_model.key.fingerprint
    other = settings.model_copy(update={"solver": "random"})
    without, with_model = (job.model_copy(update={"settings": other, "scorer": one}) for one in (None, model))
    assert without.key.fingerprint == with_model.key.fingerprint
