"""An earlier workspace's selection, which a new one goes with."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from fineweb_mask.models.embedding.arrow import vectors_of
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks import select
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.selection.inputs.given import EarlierSelection
from fineweb_mask.tasks.workspace.records.runs import LastRun


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
        select.SelectJob(root=str(copied.workspace.root), shards=job.shards, settings=settings, given=one)
        for job in copied.select_jobs[:1]
        for settings, one in ((copied.recipe.selection, None), (recipe.selection, found))
    )
    assert plain.key != given.key
    assert plain.settings_read() == given.settings_read()  # the path is not part of the key, what is in it is
    before = np.concatenate([copied.read(file)["selected"].to_numpy() for file in copied.masks[: len(given.shards)]])
    block, *_ = select.select(given).details["blocks"]
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
    (moved / "run.json").write_text(LastRun(settings=other, folder="/").model_dump_json())
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
