"""A recipe: closed and strict, with valid defaults."""

import pytest
from pydantic import ValidationError

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import EngineSettings, IngestSettings, PipelineSelectionSettings, PipelineSettings
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.settings.source import LABEL_COLUMNS
from fineweb_mask.models.settings.validation import validated

MINIMAL = {
    "workspace": "workspaces/x",
    "source": {"path": "corpus"},
    "quality": {"scorers": [{"model": "model.bin"}]},
}


def recipe(**sections):
    return {**MINIMAL, **sections}


def problem_of(content):
    with pytest.raises(ValidationError) as caught:
        PipelineSettings.model_validate(content)
    [problem] = caught.value.errors()
    return ".".join(str(part) for part in problem["loc"]), problem["type"]


def test_the_smallest_recipe_is_the_defaults_of_every_section():
    settings = PipelineSettings.model_validate(MINIMAL)
    assert settings.ingest == IngestSettings()
    assert settings.selection == PipelineSelectionSettings()
    assert settings.engine == EngineSettings()
    assert PipelineSettings.model_validate_json(settings.model_dump_json()) == settings


def test_settings_cannot_be_changed():
    settings = PipelineSettings.model_validate(MINIMAL)
    with pytest.raises(ValidationError, match="frozen"):
        settings.ingest.min_chars = 3


@pytest.mark.parametrize("section", ["source", "ingest", "quality", "embedding", "selection", "materialize", "engine"])
def test_an_unknown_key_of_any_section_is_refused(section):
    content = recipe(**{section: {**MINIMAL.get(section, {}), "bogus": 1}})
    assert problem_of(content) == (f"{section}.bogus", "extra_forbidden")


@pytest.mark.parametrize("missing", MINIMAL)
def test_a_setting_without_a_default_is_required(missing):
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
        ("embedding", "static_dimensions", 1),
        ("selection", "select_ratio", 0),
        ("selection", "select_ratio", 1.5),
        ("selection", "lamb", -0.1),
        ("selection", "lamb", float("nan")),
        ("selection", "solver", "magic"),
        ("selection", "scope", "corpus"),
        ("selection", "sample", 99),
        ("selection", "passes", 0),
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


@pytest.mark.parametrize("workspace", ["https://example.org/x", "http://127.0.0.1/x", "hf://datasets/x/y", "", "a\0b"])
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


def test_the_pipeline_adds_scope_blocks_and_device_to_the_selection_settings():
    chosen = PipelineSettings.model_validate(
        recipe(selection={"metrics": {"pairwise": 1, "facility": 2}, "mean_field": {"graph": "exact"}, "block_size": 9})
    ).selection
    assert isinstance(chosen, SelectionSettings)
    assert set(PipelineSelectionSettings.model_fields) - set(SelectionSettings.model_fields) == {
        "scope",
        "passes",
        "sample",
        "groups",
        "block_size",
        "device",
    }
    assert chosen.metric_weights == {"pairwise": 1.0, "facility": 2.0}
    assert chosen.mean_field.graph == "exact"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metrics": {"pairwise": 1, "facility": 1}}, "facility reads documents together with their neighbours"),
        ({"solver": "greedy"}, "greedy needs all documents at once"),
    ],
)
def test_what_needs_neighbours_or_all_documents_is_refused_for_the_whole_corpus(changes, says):
    PipelineSettings.model_validate(recipe(selection={"scope": "block", "metrics": "disf"} | changes))
    with pytest.raises(ValidationError, match=says):
        PipelineSettings.model_validate(recipe(selection={"scope": "global", "metrics": "disf"} | changes))


def test_where_the_default_metrics_cannot_be_used_the_default_is_another_and_others_are_named():
    assert PipelineSettings.model_validate(recipe(selection={"scope": "global"})).selection.metrics == "disf"
    named = {"scope": "global", "metrics": {"facility": 1, "disf": 1}}
    with pytest.raises(ValidationError, match=r"facility reads .* name pairwise or disf, or use scope: block"):
        PipelineSettings.model_validate(recipe(selection=named))


@pytest.mark.parametrize(
    ("selection", "says"),
    [
        ({"solver": "top_quality"}, "selection.solver: top_quality: it selects by quality alone: set quality.scorers"),
        ({"solver": "quality_sampling"}, "it selects by quality alone"),
        ({"solver": "odis"}, "it reads the columns of scorers"),
        ({"lamb": 1}, "selection.lamb: 1 is for quality alone, and quality.scorers is empty: lower it"),
    ],
)
def test_what_takes_nothing_but_quality_is_refused_without_any(selection, says):
    PipelineSettings.model_validate(recipe(selection=selection))
    PipelineSettings.model_validate(recipe(quality={"scorers": []}))
    with pytest.raises(ValidationError, match=says):
        PipelineSettings.model_validate(recipe(quality={"scorers": []}, selection=selection))


@pytest.mark.parametrize(
    ("column", "source", "says"),
    [
        ("topic", {"extra_columns": ["site"]}, "'topic' is not read: add it to source.extra_columns, or name one of d"),
        ("content_hash", {"extra_columns": []}, "'content_hash' is not read"),
        ("text", {}, "selection.groups.column: received 'text': the text itself cannot be a group"),
        ("body", {"text_column": "body"}, "received 'body': the text itself cannot be a group"),
    ],
)
def test_groups_of_a_column_that_is_not_read_are_refused(column, source, says):
    with pytest.raises(ValidationError, match=says):
        PipelineSettings.model_validate(
            recipe(source={"path": "corpus"} | source, selection={"metrics": "disf", "groups": {"column": column}})
        )


@pytest.mark.parametrize("key", ["prefer", "exempt"])
def test_copies_are_not_preferred_by_a_column_that_is_not_read(key):
    copies = {key: {"topic": ["news"]}}
    with pytest.raises(ValidationError, match=rf"ingest\.copies\.{key}: 'topic' is not read"):
        PipelineSettings.model_validate(
            recipe(source={"path": "corpus", "extra_columns": []}, ingest={"copies": copies})
        )


@pytest.mark.parametrize("copies", [{"keep": "newest"}, {"prefer": {"a": ["x"], "b": ["y"]}}, {"prefer": {"a": "x"}}])
def test_a_choice_of_copies_that_cannot_be_made_is_refused(copies):
    with pytest.raises(ValidationError, match=r"ingest\.copies"):
        PipelineSettings.model_validate(recipe(ingest={"copies": copies}))


@pytest.mark.parametrize("threshold", [0, -0.1, 1.01, float("nan")])
def test_a_similarity_outside_of_what_there_is_is_refused(threshold):
    with pytest.raises(ValidationError, match=r"ingest\.near_threshold"):
        PipelineSettings.model_validate(recipe(ingest={"near_threshold": threshold}))


@pytest.mark.parametrize(
    ("column", "kept"), [*((column, []) for column in sorted(LABEL_COLUMNS)), ("site", ["site"]), ("site", "all")]
)
def test_groups_may_be_those_of_any_column_that_is_read(column, kept):
    source = {"path": "corpus", "extra_columns": kept}
    selection = {"metrics": "disf", "groups": {"column": column}}
    settings = PipelineSettings.model_validate(recipe(source=source, selection=selection))
    assert settings.selection.groups.column == column
    assert {*FINEWEB.names, "n_chars"} - {"text"} == LABEL_COLUMNS


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"scope": "global", "metrics": "disf"}, "scope: global has none"),
        ({"budget": 500}, "budget, 500, is what every block gives: use select_ratio"),
    ],
)
def test_groups_need_blocks_and_a_share(changes, says):
    groups = {"groups": {"column": "dump"}}
    PipelineSettings.model_validate(recipe(selection=changes))
    PipelineSettings.model_validate(recipe(selection=groups | {"solver": "semdedup"}))
    with pytest.raises(SettingsError, match=says) as error:
        validated(PipelineSettings, recipe(selection=groups | changes))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "documents"),
    [
        ({"metrics": "pairwise"}, 20 * 768 * 10),
        ({"metrics": "disf"}, 5 * 128 * 129 // 2 * 10),
        ({"metrics": {"pairwise": 1, "disf": 1}}, 5 * 128 * 129 // 2 * 10),
        ({"metrics": "pairwise", "budget": 2_000}, 20 * 768 * 50),
        ({"metrics": "pairwise", "sample": 700}, 700),
    ],
)
def test_the_sample_is_as_large_as_the_metrics_take(changes, documents):
    settings = PipelineSelectionSettings(scope="global", **changes)
    assert settings.sample_for(100_000, 768) == documents
