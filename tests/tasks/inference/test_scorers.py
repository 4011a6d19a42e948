"""Models of the scorers are checked before any work starts, and identified by their content."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fineweb_mask.models.settings.quality import (
    ColumnScorerSettings,
    EduScorerSettings,
    FastTextScorerSettings,
    LabelSettings,
    QualitySettings,
)
from fineweb_mask.tasks.fit import models as fit
from fineweb_mask.tasks.inference.model_files import ModelNotFoundError
from fineweb_mask.tasks.inference.scorers import check_scorers, load_models, resolve_model
from fineweb_mask.tasks.workspace.job import BadShardError
from tests.tasks.jobs import statistics_job


@pytest.fixture(scope="module")
def folder(built: Any, save_regression_bert: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = built.read(built.documents[0])["text"].to_pylist()
    return save_regression_bert(tmp_path_factory.mktemp("edu") / "model", texts)


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        (FastTextScorerSettings(model="no/m.bin"), "quality.scorers.1.model: 'no/m.bin' does not exist"),
        (
            FastTextScorerSettings(labels=LabelSettings(path="no.parquet")),
            "quality.scorers.1.labels: the labels 'no.parquet'",
        ),
        (EduScorerSettings(model="tests"), "quality.scorers.1.model: the folder 'tests' must hold config.json"),
    ],
)
def test_a_missing_model_or_file_is_named(scorer: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[3])
    with pytest.raises(ModelNotFoundError) as caught:
        check_scorers([ColumnScorerSettings(column="score"), scorer])
    assert str(caught.value).startswith(message)


def test_a_folder_of_a_classifier_has_all_its_parts(folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    check_scorers([EduScorerSettings(model=str(copy)), EduScorerSettings()])
    for part in ("model.safetensors", "tokenizer.json", "config.json"):
        (copy / part).unlink()
        with pytest.raises(ModelNotFoundError, match=f"must hold .*{part[-5:]}"):
            check_scorers([EduScorerSettings(model=str(copy))])


def test_a_model_is_known_by_its_content(folder: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(folder, tmp_path / "moved")
    first, same = (resolve_model(EduScorerSettings(model=str(one))) for one in (folder, moved))
    assert first.identity == same.identity
    weights = moved / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert resolve_model(EduScorerSettings(model=str(moved))).identity != first.identity


def test_statistics_of_every_kind_are_those_of_its_scores(copied: Any, folder: Path) -> None:
    scorers = [
        copied.recipe.quality.scorers[0],
        EduScorerSettings(model=str(folder)),
        ColumnScorerSettings(name="tokens", column="token_count"),
    ]
    models = [*copied.models, *(resolve_model(settings) for settings in scorers[1:])]
    job = statistics_job(copied.workspace, copied.documents, models, QualitySettings(scorers=scorers))
    statistics = fit.fit_statistics(job).details["statistics"]
    tables = [copied.read(file) for file in copied.documents]
    texts = [text for table in tables for text in table["text"].to_pylist()]
    tokens = np.concatenate([table["token_count"].to_numpy() for table in tables])
    edu = load_models(copied.workspace, models)["edu"].score(texts).astype(np.float64)
    assert statistics["tokens"] == pytest.approx((tokens.mean(), tokens.std()))
    assert statistics["edu"] == pytest.approx((edu.mean(), edu.std()), abs=1e-5)
    assert statistics["space"] == pytest.approx(copied.statistics.details["statistics"]["space"])


def test_statistics_of_a_missing_column_name_it(copied: Any) -> None:
    scorer = ColumnScorerSettings(column="score")
    settings = QualitySettings(scorers=[scorer])
    job = statistics_job(copied.workspace, copied.documents, [resolve_model(scorer)], settings)
    with pytest.raises(BadShardError, match="a-000: no column 'score' to take a score from"):
        fit.fit_statistics(job)
    settings = QualitySettings(scorers=[ColumnScorerSettings(column="score", missing=1.0)])
    job = statistics_job(copied.workspace, copied.documents, [resolve_model(settings.scorers[0])], settings)
    assert fit.fit_statistics(job).details["statistics"]["column"][0] == 1.0
