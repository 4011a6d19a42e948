"""A selection's rule, taken out of a workspace and applied to documents elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.quality import SidecarScorerSettings
from fineweb_mask.tasks.fit.models import fit_statistics
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.score import score
from fineweb_mask.tasks.selection.corpus.policy_file import Models, apply_rule, check_has_rule, export_rule
from fineweb_mask.tasks.source.discovery import find_files
from tests.tasks.jobs import score_job, statistics_job


@pytest.fixture
def models(copied: Any) -> Models:
    encoder = ModelFolder(path=copied.encoder.path, fingerprint=copied.encoder.fingerprint)
    selection = copied.recipe.selection.model_dump() | {"near_duplicates": {"weight": 0}, "metrics": "pairwise"}
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
    # Among the candidates exactly the budget is at the threshold or above; the others are repeats of some of them, or
    # short. The last one's gain is the threshold itself, so the rounding of its vector decides on that one alone.
    by_id = {one["id"]: one for one in answers.to_pylist()}
    documents = pa.concat_tables([copied.read(file, columns=["id"]) for file in copied.documents])["id"].to_pylist()
    scores = pa.concat_tables([copied.read(file, columns=["quality"]) for file in copied.scores])["quality"].to_pylist()
    masks = pa.concat_tables([copied.read(file) for file in copied.masks])
    eligible = masks["block"].is_valid().to_pylist()
    candidates = [by_id[name] for name, is_one in zip(documents, eligible, strict=True) if is_one]
    above = np.array([one["inclusion"] for one in candidates]) - 0.5
    assert (above > -1e-4).sum() == round(models.settings.selection.select_ratio * sum(eligible))
    assert (abs(above) <= 1e-4).sum() == 1
    assert all(one["selected"] == (gain > 0) for one, gain in zip(candidates, above, strict=True) if abs(gain) > 1e-4)
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


def test_documents_none_of_which_has_a_text_are_answered_for(models: Models, rule: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["", " "], "id": ["a", "b"]}), tmp_path / "new.parquet")
    answered = apply_rule(rule, find_files(str(tmp_path / "new.parquet"), "SOURCE"), tmp_path / "out.parquet", models)
    assert (answered.documents, answered.selected, answered.left_out) == (2, 0, 2)


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
        ({"near_duplicates": {"forbid": True}}, r"selection\.near_duplicates\.forbid: .*set it to false"),
        ({"budget": 5}, r"selection\.budget: .*use select_ratio"),
    ],
)
def test_selections_without_a_rule_are_refused_by_name(models: Models, settings: Any, message: str) -> None:
    selection = PipelineSelectionSettings.model_validate({"metrics": "pairwise"} | settings)
    with pytest.raises(SettingsError, match=message):
        check_has_rule(models.settings.model_copy(update={"selection": selection}))


def test_a_score_that_is_beside_the_source_is_refused_by_name(models: Models) -> None:
    sidecar = SidecarScorerSettings(name="theirs", path="scores/{shard}.npy")
    quality = models.settings.quality
    with_sidecar = quality.model_copy(update={"scorers": [*quality.scorers, sidecar]})
    with pytest.raises(SettingsError, match=r"quality\.scorers\.1: the score 'theirs' is of a file beside"):
        check_has_rule(models.settings.model_copy(update={"quality": with_sidecar}))


@pytest.mark.parametrize("change", [{"prompt": "query: "}, {"long_documents": "windows"}])
def test_a_rule_is_of_how_vectors_are_made(models: Models, change: Any) -> None:
    embedding = models.settings.embedding.model_copy(update=change)
    other = models._replace(settings=models.settings.model_copy(update={"embedding": embedding}))
    assert other.fingerprint != models.fingerprint


def test_scores_are_standardised_by_group_as_the_workspace_s_are(
    copied: Any, models: Models, rule: Path, tmp_path: Path
) -> None:
    quality = models.settings.quality.model_copy(update={"by": "dump"})
    fitting = statistics_job(copied.workspace, copied.documents, copied.models, quality)
    statistics = fit_statistics(fitting.model_copy(update={"group_documents": 5}))
    assert statistics.details["by_group"]
    by_dump = models._replace(settings=models.settings.model_copy(update={"quality": quality}), statistics=statistics)
    path = tmp_path / "by_dump.safetensors"
    export_rule(path, by_dump, copied.selection_shards, None)
    apply_rule(path, copied.shards, tmp_path / "answers.parquet", by_dump)
    answers = {one["id"]: one["quality"] for one in pq.read_table(tmp_path / "answers.parquet").to_pylist()}
    for documents in copied.documents:
        scores = score(score_job(copied.workspace, documents, copied.models, statistics, quality))
        names = copied.read(documents, columns=["id"])["id"].to_pylist()
        expected = copied.read(scores, columns=["quality"])["quality"].to_pylist()
        np.testing.assert_allclose([answers[name] for name in names], expected, rtol=1e-5)
