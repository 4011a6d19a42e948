"""Models of the scorers are checked before any work starts, and identified by their content."""

import shutil

import pytest

from fineweb_mask.models.settings.quality import (
    EduScorerSettings,
    FastTextScorerSettings,
)
from fineweb_mask.tasks.inference.model_files import ModelNotFoundError
from fineweb_mask.tasks.inference.scorers import resolve_model


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
