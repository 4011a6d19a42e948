"""Scores of few documents: equal to those of all, of nobody else, and part of what a selection depends on."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_mask.models.selection.selectors.bandit import solve_quad
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.quality import EduScorerSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from fineweb_mask.tasks.inference.scorers import QualityModel, load_models, resolve_model
from fineweb_mask.tasks.select import SelectJob, select
from fineweb_mask.tasks.selection.inputs.few_scores import FewScores


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
    assert not list(copied.workspace.cache.iterdir())  # the copy of the texts has no name


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
