"""Models of the scorers are checked before any work starts, and identified by their content."""

import shutil

import numpy as np
import pytest

from fineweb_mask.models.settings.quality import (
    ColumnScorerSettings,
    EduScorerSettings,
    FastTextScorerSettings,
    QualitySettings,
)
from fineweb_mask.tasks import fit
from fineweb_mask.tasks.inference.model_files import ModelNotFoundError
from fineweb_mask.tasks.inference.scorers import load_models, resolve_model
from fineweb_mask.tasks.workspace.job import BadShardError
from tests.tasks.jobs import statistics_job


@pytest.fixture(scope="module")
def folder(built, save_regression_bert, tmp_path_factory):
    texts = built.read(built.documents[0])["text"].to_pylist()
    return save_regression_bert(tmp_path_factory.mktemp("edu") / "model", texts)


def test_a_missing_or_another_file_is_named(tmp_path):
    (tmp_path / "m.bin").write_text("no model")
    for model, message in (("no/m.bin", "'no/m.bin' does not exist"), (tmp_path / "m.bin", ".* is no.* fastText")):
        with pytest.raises(ModelNotFoundError, match=rf"^quality\.scorers\.1\.model: {message}"):
            resolve_model(FastTextScorerSettings(model=str(model)), 1)


def test_a_folder_of_a_classifier_has_all_its_parts(folder, tmp_path):
    copy = shutil.copytree(folder, tmp_path / "copy")
    resolve_model(EduScorerSettings(model=str(copy)))
    for part in ("model.safetensors", "tokenizer.json", "config.json"):
        (copy / part).unlink()
        message = rf"quality\.scorers\.0\.model: the folder .* has no .*{part[-5:]}: it must be a transformers model"
        with pytest.raises(ModelNotFoundError, match=message):
            resolve_model(EduScorerSettings(model=str(copy)))


def test_statistics_of_every_kind_are_those_of_its_scores(copied, folder):
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
    for missing, message in ((None, "a-000: no column 'score' to take a score from"), (1.0, "")):
        scorer = ColumnScorerSettings(column="score", missing=missing)
        given = [resolve_model(scorer)], QualitySettings(scorers=[scorer])
        job = statistics_job(copied.workspace, copied.documents, *given)
        if message:
            with pytest.raises(BadShardError, match=message):
                fit.fit_statistics(job)
        else:
            assert fit.fit_statistics(job).details["statistics"]["column"][0] == 1.0
