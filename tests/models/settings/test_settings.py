"""The settings: closed, strict, with defaults that hold."""

import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from fineweb_mask.models.settings import (
    EmbeddingSettings,
    EngineSettings,
    IngestSettings,
    MaterializeSettings,
    PipelineSelectionSettings,
    PipelineSettings,
    SourceSettings,
)
from fineweb_mask.models.settings.base import Settings
from fineweb_mask.models.settings.quality import FastTextTrainingSettings
from fineweb_mask.models.settings.selection import (
    MeanFieldSettings,
    PolicyGradientSettings,
    QualitySamplingSettings,
    SelectionSettings,
    SemDedupSettings,
)
from fineweb_mask.models.settings.training import TrainQualitySettings

MINIMAL = {
    "workspace": "workspaces/x",
    "source": {"path": "corpus"},
    "quality": {"scorers": [{"model": "model.bin"}]},
}
WITH_DEFAULTS = [
    EmbeddingSettings,
    EngineSettings,
    FastTextTrainingSettings,
    IngestSettings,
    MaterializeSettings,
    MeanFieldSettings,
    PipelineSelectionSettings,
    PolicyGradientSettings,
    QualitySamplingSettings,
    SelectionSettings,
    SemDedupSettings,
]


def recipe(**sections):
    return {**MINIMAL, **sections}


def problem_of(content):
    with pytest.raises(ValidationError) as caught:
        PipelineSettings.model_validate(content)
    [problem] = caught.value.errors()
    return ".".join(str(part) for part in problem["loc"]), problem["type"]


def models_in(model, seen=None):
    """Every settings model below `model`, itself included."""
    seen = {model} if seen is None else seen
    pending = [field.annotation for field in model.model_fields.values()]
    while pending:
        annotation = pending.pop()
        pending += get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
            seen.add(annotation)
            models_in(annotation, seen)
    return seen


@pytest.mark.parametrize("model", WITH_DEFAULTS, ids=lambda model: model.__name__)
def test_every_default_is_valid_and_survives_json(model):
    defaults = model()
    assert model.model_validate(defaults.model_dump()) == defaults
    assert model.model_validate_json(defaults.model_dump_json()) == defaults


def test_the_smallest_recipe_is_the_defaults_of_every_section():
    settings = PipelineSettings.model_validate(MINIMAL)
    assert settings.ingest == IngestSettings()
    assert settings.selection == PipelineSelectionSettings()
    assert settings.engine == EngineSettings()
    assert PipelineSettings.model_validate_json(settings.model_dump_json()) == settings


def test_every_setting_is_described_and_every_section_is_closed_and_immutable():
    found = models_in(PipelineSettings)
    assert {SourceSettings, FastTextTrainingSettings, SemDedupSettings, *WITH_DEFAULTS} - {SelectionSettings} <= found
    for model in found:
        assert issubclass(model, Settings)
        assert model.model_config["extra"] == "forbid"
        assert model.model_config["frozen"]
        for name, field in model.model_fields.items():
            is_section = isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
            assert is_section or field.description, f"{model.__name__}.{name}"


def test_settings_cannot_be_changed():
    settings = PipelineSettings.model_validate(MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        settings.ingest.min_chars = 3


@pytest.mark.parametrize("section", ["source", "ingest", "quality", "embedding", "selection", "materialize", "engine"])
def test_an_unknown_key_of_any_section_is_refused(section):
    content = recipe(**{section: {**MINIMAL.get(section, {}), "bogus": 1}})
    assert problem_of(content) == (f"{section}.bogus", "extra_forbidden")


@pytest.mark.parametrize("missing", MINIMAL)
def test_what_has_no_default_is_required(missing):
    assert problem_of({key: value for key, value in MINIMAL.items() if key != missing}) == (missing, "missing")


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("ingest", "min_chars", "many"),
        ("ingest", "min_chars", 1.5),
        ("ingest", "languages", "en"),
        ("embedding", "model", 3),
        ("embedding", "max_tokens", [1]),
        ("selection", "select_ratio", "a quarter"),
        ("selection", "seed", None),
        ("selection", "mean_field", 3),
        ("materialize", "title", ["a", "b"]),
        ("engine", "workers", {}),
    ],
)
def test_a_wrong_type_is_refused(section, key, value):
    assert problem_of(recipe(**{section: {key: value}}))[0] == f"{section}.{key}"


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("ingest", "min_chars", 0),
        ("ingest", "min_language_score", 1.01),
        ("ingest", "min_language_score", float("nan")),
        ("ingest", "exact_dedup", "fuzzy"),
        ("ingest", "on_bad_shard", "ignore"),
        ("embedding", "model", ""),
        ("embedding", "max_tokens", 0),
        ("embedding", "precision", "int4"),
        ("embedding", "compute_precision", "int8"),
        ("embedding", "long_documents", "split"),
        ("embedding", "batch_tokens", 0),
        ("embedding", "chunk_documents", 0),
        ("embedding", "static_vocabulary", 299),
        ("selection", "select_ratio", 0),
        ("selection", "select_ratio", 1.5),
        ("selection", "lamb", -0.1),
        ("selection", "lamb", float("nan")),
        ("selection", "solver", "magic"),
        ("selection", "scope", "corpus"),
        ("selection", "block_size", 0),
        ("selection", "budget", 0),
        ("materialize", "file_size", 1000),
        ("materialize", "memory_limit", "lots"),
        ("materialize", "memory_limit", "2GB'; DROP TABLE x; --"),
        ("engine", "kind", "slurm"),
        ("engine", "workers", 0),
        ("engine", "workers", 65),
    ],
)
def test_an_impossible_value_is_refused(section, key, value):
    assert problem_of(recipe(**{section: {key: value}}))[0] == f"{section}.{key}"


@pytest.mark.parametrize("workspace", ["https://example.org/x", "http://127.0.0.1/x", "hf://datasets/x/y", ""])
def test_a_workspace_that_cannot_be_written_is_refused(workspace):
    assert problem_of(recipe(workspace=workspace))[0] == "workspace"


@pytest.mark.parametrize("workspace", ["folder", "s3://bucket/x", "file:///tmp/x"])
def test_a_workspace_is_a_folder_or_a_url(workspace):
    assert PipelineSettings.model_validate(recipe(workspace=workspace)).workspace == workspace


@pytest.mark.parametrize(("section", "key"), [("source", "path"), (None, "workspace"), ("materialize", "output")])
def test_a_url_with_credentials_is_refused_without_repeating_them(section, key):
    secret = "hunter2secret"
    url = f"s3://user:{secret}@bucket/x"
    values = recipe(**({section: MINIMAL.get(section, {}) | {key: url}} if section else {key: url}))
    with pytest.raises(ValidationError) as caught:
        PipelineSettings.model_validate(values)
    assert "put credentials in the environment" in str(caught.value)
    assert secret not in str(caught.value)


@pytest.mark.parametrize("output", ["https://example.org/x", "hf://datasets/x/y"])
def test_an_output_that_cannot_be_written_is_refused(output):
    assert problem_of(recipe(materialize={"output": output}))[0] == "materialize.output"


def test_scratch_is_a_local_folder():
    assert problem_of(recipe(engine={"scratch": "s3://bucket/x"}))[0] == "engine.scratch"


def test_the_pipeline_s_selection_is_the_selection_s_settings_and_where_it_runs():
    chosen = PipelineSettings.model_validate(
        recipe(selection={"metrics": {"pairwise": 1, "facility": 2}, "mean_field": {"swap_rounds": 3}, "block_size": 9})
    ).selection
    assert isinstance(chosen, SelectionSettings)
    assert set(PipelineSelectionSettings.model_fields) - set(SelectionSettings.model_fields) == {
        "scope",
        "block_size",
        "device",
    }
    assert chosen.metric_weights == {"pairwise": 1.0, "facility": 2.0}
    assert chosen.mean_field.swap_rounds == 3
    assert chosen.mean_field.n_near == MeanFieldSettings().n_near


@given(st.integers(1, 10**9), st.floats(0, 1), st.lists(st.text()), st.sampled_from(["corpus", "shard", "off"]))
def test_what_is_allowed_is_kept_as_it_was_given(min_chars, score, languages, dedup):
    given_values = {
        "min_chars": min_chars,
        "min_language_score": score,
        "languages": languages,
        "exact_dedup": dedup,
        "on_bad_shard": "fail",
    }
    assert IngestSettings.model_validate(given_values).model_dump() == given_values


def test_the_settings_are_loaded_without_torch_arrow_or_prefect():
    code = "import sys, fineweb_mask.models.settings; print(sorted({'torch', 'pyarrow', 'prefect'} & set(sys.modules)))"
    root = Path(__file__).resolve().parents[3]
    loaded = subprocess.run([sys.executable, "-c", code], cwd=root, check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == "[]"


def definitions():
    """Every section of the settings as a form is drawn from it."""
    schemas = [PipelineSettings.model_json_schema(), TrainQualitySettings.model_json_schema()]
    return {name: section for schema in schemas for name, section in schema["$defs"].items()} | {
        schema["title"]: schema for schema in schemas
    }


@pytest.mark.parametrize(("name", "section"), definitions().items())
def test_a_form_shows_every_field_in_order_with_help_and_bounds(name, section):
    fields = section["properties"]
    assert [field["position"] for field in fields.values()] == list(range(len(fields)))
    for key, field in fields.items():
        of_section = [definitions()[field["$ref"].rpartition("/")[2]]["description"]] if "$ref" in field else []
        assert field.get("description") or of_section, f"{name}.{key} has no help"
        for branch in field.get("anyOf", [field]):
            if branch.get("type") == "integer":
                assert {"minimum", "exclusiveMinimum"} & branch.keys(), f"{name}.{key} has no bound"
