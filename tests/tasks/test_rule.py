"""A selection's rule, taken out of a workspace and applied to documents elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks import embed
from fineweb_mask.tasks.rule import Models, apply_rule, check_has_rule, export_rule
from fineweb_mask.tasks.source.discovery import find_files


@pytest.fixture
def models(copied: Any) -> Models:
    encoder = embed.fitted_model(copied.encoder)
    selection = copied.recipe.selection.model_dump() | {"near_duplicates": {"weight": 0}}
    settings = copied.recipe.model_copy(update={"selection": PipelineSelectionSettings.model_validate(selection)})
    return Models(copied.workspace, settings, copied.models, copied.statistics, encoder.path, encoder.fingerprint)


@pytest.fixture
def rule(copied: Any, models: Models, tmp_path: Path) -> Path:
    path = tmp_path / "rule.safetensors"
    export_rule(path, models, copied.selection_shards, None)
    return path


def test_the_rule_selects_its_share_of_the_documents_that_it_was_learned_on(
    copied: Any, models: Models, rule: Path, tmp_path: Path
) -> None:
    output = tmp_path / "answers.parquet"
    answered = apply_rule(rule, copied.shards, output, models)
    answers = pq.read_table(output)
    assert answered.documents == answers.num_rows == sum(file.details["rows_in"] for file in copied.documents)
    assert answered.selected == sum(answers["selected"].to_pylist())
    # Among the candidates exactly the budget is selected; the others are repeats of some of them, or short.
    by_id = {one["id"]: one for one in answers.to_pylist()}
    documents = pa.concat_tables([copied.read(file, columns=["id"]) for file in copied.documents])["id"].to_pylist()
    scores = pa.concat_tables([copied.read(file, columns=["quality"]) for file in copied.scores])["quality"].to_pylist()
    masks = pa.concat_tables([copied.read(file) for file in copied.masks])
    eligible = masks["block"].is_valid().to_pylist()
    chosen = [by_id[name]["selected"] for name, is_one in zip(documents, eligible, strict=True) if is_one]
    assert sum(chosen) == round(models.settings.selection.select_ratio * sum(eligible))
    np.testing.assert_allclose([by_id[name]["quality"] for name in documents], scores, rtol=1e-5)


def test_a_document_without_a_text_is_not_selected(models: Models, rule: Path, tmp_path: Path) -> None:
    rows = [{"text": "", "id": "empty"}, {"text": None, "id": "null"}, {"text": "A galaxy of stars.", "id": "text"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "new.parquet")
    answered = apply_rule(rule, find_files(str(tmp_path / "new.parquet"), "SOURCE"), tmp_path / "out.parquet", models)
    assert answered.documents == 3
    assert answered.left_out >= 2
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert [one["selected"] for one in found[:2]] == [False, False]
    assert found[0]["inclusion"] is None


def test_a_rule_of_other_models_is_refused(copied: Any, models: Models, rule: Path, tmp_path: Path) -> None:
    other = models._replace(encoder_fingerprint="another")
    with pytest.raises(SettingsError, match="other scorers, statistics or encoder than the workspace's: use the"):
        apply_rule(rule, copied.shards, tmp_path / "out.parquet", other)
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver": "random"}, r"selection\.solver: a rule is that of mean_field, received random: use mean_field"),
        ({"metrics": "facility"}, r"selection\.metrics: facility reads documents with their neighbours"),
        ({"groups": {"column": "dump"}}, r"selection\.groups: .*: leave them out"),
    ],
)
def test_selections_without_a_rule_are_refused_by_name(settings: Any, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_has_rule(PipelineSelectionSettings.model_validate(settings))
