"""A recipe: closed and strict, with valid defaults."""

import pytest
from pydantic import ValidationError

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import PipelineSelectionSettings, PipelineSettings
from fineweb_mask.models.settings.source import LABEL_COLUMNS
from fineweb_mask.models.settings.validation import validated

MINIMAL = {
    "workspace": "workspaces/x",
    "source": {"path": "corpus"},
    "quality": {"scorers": [{"model": "model.bin"}]},
}


def parsed(**sections):
    """Return a recipe whose sections are those of the smallest one with these settings."""
    both = dict(MINIMAL)
    for name, own in sections.items():
        both[name] = MINIMAL.get(name, {}) | own if isinstance(own, dict) else own
    return PipelineSettings.model_validate(both)


def refused(says, **sections):
    with pytest.raises(ValidationError, match=says) as caught:
        parsed(**sections)
    [problem] = caught.value.errors()
    return ".".join(str(part) for part in problem["loc"]), problem["type"]


def test_the_smallest_recipe_is_the_defaults_of_every_section_and_cannot_be_changed():
    settings = parsed()
    assert settings.selection == PipelineSelectionSettings()
    assert PipelineSettings.model_validate_json(settings.model_dump_json()) == settings
    with pytest.raises(ValidationError, match="frozen"):
        settings.ingest.min_chars = 3


@pytest.mark.parametrize("section", ["source", "ingest", "quality", "embedding", "selection", "materialize", "engine"])
def test_an_unknown_key_of_any_section_is_refused(section):
    assert refused("bogus", **{section: {"bogus": 1}}) == (f"{section}.bogus", "extra_forbidden")


@pytest.mark.parametrize("missing", MINIMAL)
def test_a_setting_without_a_default_is_required(missing):
    with pytest.raises(ValidationError, match=f"1 validation error .*\n{missing}\n +Field required"):
        PipelineSettings.model_validate({key: value for key, value in MINIMAL.items() if key != missing})


NAN = float("nan")
IMPOSSIBLE = {
    "workspace": ["https://example.org/x", "http://127.0.0.1/x", "hf://datasets/x/y", "", "a\0b"],
    "ingest.min_chars": ["many", 1.5, 0],
    "ingest.languages": ["en"],
    "ingest.min_language_score": [1.01, NAN],
    "ingest.exact_dedup": ["fuzzy"],
    "ingest.near_threshold": [0, -0.1, 1.01, NAN],
    "ingest.on_bad_shard": ["ignore"],
    "ingest.copies.keep": ["newest"],
    "ingest.copies.prefer": [{"a": ["x"], "b": ["y"]}],
    "ingest.copies.prefer.a": ["x"],
    "embedding.model": [3, ""],
    "embedding.max_tokens": [[1], 0],
    "embedding.precision": ["int4"],
    "embedding.static_dimensions": [1],
    "selection.select_ratio": ["a quarter", 0, 1.5],
    "selection.seed": [None],
    "selection.mean_field": [3],
    "selection.lamb": [-0.1, NAN],
    "selection.solver": ["magic"],
    "selection.scope": ["corpus"],
    "selection.sample": [99],
    "selection.passes": [0],
    "selection.block_size": [0],
    "selection.budget": [0],
    "materialize.title": [["a", "b"]],
    "materialize.file_size": [1000],
    "materialize.memory_limit": ["lots", "2GB'; DROP TABLE x; --"],
    "materialize.output": ["https://example.org/x", "hf://datasets/x/y"],
    "engine.kind": ["slurm"],
    "engine.workers": [{}, 0, 65],
    "engine.scratch": ["s3://bucket/x"],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in IMPOSSIBLE.items() for value in values])
def test_a_wrong_type_and_an_impossible_value_are_refused_by_key(key, value):
    content = value
    for name in reversed(key.split(".")):
        content = {name: content}
    found, _ = refused("1 validation error", **content)
    assert found == key


@pytest.mark.parametrize("workspace", ["folder", "s3://bucket/x", "file:///tmp/x"])
def test_a_workspace_is_a_folder_or_a_url(workspace):
    assert parsed(workspace=workspace).workspace == workspace


@pytest.mark.parametrize("key", ["source.path", "workspace", "materialize.output"])
def test_a_url_with_credentials_is_refused_without_repeating_them(key):
    secret = "hunter2secret"
    section, _, name = key.partition(".")
    url = f"s3://user:{secret}@bucket/x"
    with pytest.raises(ValidationError, match="put credentials in the environment") as caught:
        parsed(**{section: {name: url} if name else url})
    assert secret not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metrics": {"pairwise": 1, "facility": 1}}, "facility reads documents together with their neighbours"),
        ({"metrics": {"facility": 1, "disf": 1}}, r"facility reads .* name pairwise or disf, or use scope: block"),
        ({"metrics": "disf", "solver": "greedy"}, "greedy needs all documents at once"),
    ],
)
def test_what_needs_neighbours_or_all_documents_is_refused_for_the_whole_corpus(changes, says):
    parsed(selection={"scope": "block"} | changes)
    refused(says, selection={"scope": "global"} | changes)
    assert parsed(selection={"scope": "global"}).selection.metrics == "disf"  # another than the default of blocks


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
    parsed(selection=selection)
    parsed(quality={"scorers": []})
    refused(says, quality={"scorers": []}, selection=selection)


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
    refused(says, source=source, selection={"metrics": "disf", "groups": {"column": column}})


@pytest.mark.parametrize("key", ["prefer", "exempt"])
def test_copies_are_not_preferred_by_a_column_that_is_not_read(key):
    copies = {key: {"topic": ["news"]}}
    says = rf"ingest\.copies\.{key}: 'topic' is not read"
    refused(says, source={"extra_columns": []}, ingest={"copies": copies})


@pytest.mark.parametrize(
    ("column", "kept"), [*((column, []) for column in sorted(LABEL_COLUMNS)), ("site", ["site"]), ("site", "all")]
)
def test_groups_may_be_those_of_any_column_that_is_read(column, kept):
    settings = parsed(source={"extra_columns": kept}, selection={"metrics": "disf", "groups": {"column": column}})
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
    parsed(selection=changes)
    parsed(selection=groups | {"solver": "semdedup"})
    with pytest.raises(SettingsError, match=says) as error:
        validated(PipelineSettings, MINIMAL | {"selection": groups | changes})
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
