"""Settings are closed, described, immutable, and valid by default; a form shows them in order."""

from typing import get_args

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, TypeAdapter

from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.base import Overrides, Settings
from fineweb_mask.models.settings.quality import FastTextScorerSettings


def models_in(model, seen):
    """Return a model and all settings models of its fields, at any depth."""
    seen.add(model)
    pending = [field.annotation for field in model.model_fields.values()]
    while pending:
        annotation = pending.pop()
        pending += get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation not in seen:
            models_in(annotation, seen)
    return seen


SECTIONS = sorted(models_in(PipelineSettings, set()), key=str)


@pytest.mark.parametrize("model", SECTIONS, ids=lambda model: model.__name__)
def test_every_section_is_closed_and_immutable_its_settings_described_and_its_defaults_valid(model):
    assert issubclass(model, Settings)
    assert (model.model_config["extra"], model.model_config["frozen"]) == ("forbid", True)
    for name, field in model.model_fields.items():
        is_section = isinstance(field.annotation, type) and issubclass(field.annotation, Settings)
        assert is_section or field.description, f"{model.__name__}.{name}"
    if model is not FastTextScorerSettings and not any(one.is_required() for one in model.model_fields.values()):
        assert model.model_validate_json(model().model_dump_json()) == model()


SCHEMA = PipelineSettings.model_json_schema()
SCHEMAS = SCHEMA["$defs"] | {SCHEMA["title"]: SCHEMA}


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_form_shows_every_field_in_order_with_bounds(name):
    fields = SCHEMAS[name]["properties"]
    assert [field["position"] for field in fields.values()] == list(range(len(fields)))
    for key, field in fields.items():
        for branch in field.get("anyOf", [field]):
            if branch.get("type") == "integer":
                assert {"minimum", "exclusiveMinimum"} & branch.keys(), f"{name}.{key} has no bound"


@pytest.mark.parametrize(
    ("overrides", "is_allowed"),
    [
        ({"selection.lamb": 0.3, "source.path": "s3://bucket/x", "selection": {"metrics": {"disf": 1}}}, True),
        ({"source.path": "s3://user:hunter2@bucket/x"}, False),
        ({"ingest": {"against": ["https://example.org/x?sig=hunter2"]}}, False),
    ],
)
def test_a_server_stores_no_secret_of_what_a_run_overrides(overrides, is_allowed):
    """It checks what is sent by this schema, as the sections' own."""
    assert Draft202012Validator(TypeAdapter(Overrides).json_schema()).is_valid(overrides) is is_allowed
