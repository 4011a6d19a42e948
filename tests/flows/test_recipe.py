"""Recipes: overrides in YAML, and errors that say which key to change and how."""

from pathlib import Path

import pytest
import yaml

from fineweb_mask.flows.recipe import RecipeError, load_recipe
from fineweb_mask.models.settings import PipelineSettings

RECIPE = {
    "workspace": "workspaces/x",
    "source": {"path": "corpus"},
    "ingest": {"languages": ["en", "de"]},
    "quality": {"scorers": [{"name": "a", "model": "a.bin"}, {"name": "b", "model": "b.bin"}]},
    "materialize": None,
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump({key: value for key, value in RECIPE.items() if value is not None}))
    return file


def error_of(path, *overrides, **arguments):
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides, **arguments)
    return str(caught.value)


def value_at(settings, key):
    for part in key.split("."):
        settings = settings[int(part)] if part.isdecimal() else getattr(settings, part)
    return settings


def test_a_recipe_is_the_settings_in_it(path):
    expected = {key: value for key, value in RECIPE.items() if value is not None}
    assert load_recipe(path) == PipelineSettings.model_validate(expected)


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("selection.lamb=0.3", 0.3),
        ("selection.lamb=1", 1.0),
        ("selection.seed=7", 7),
        ("selection.budget=null", None),
        ("selection.budget=", None),
        ("selection.budget=12", 12),
        ("selection.metrics={pairwise: 1, facility: 0.5}", {"pairwise": 1.0, "facility": 0.5}),
        ("selection.policy_gradient.n_epochs=20", 20),
        ("selection.policy_gradient.min_lr=1e-3", 0.001),
        ("ingest.languages=[fr, it]", ["fr", "it"]),
        ("ingest.languages=[]", []),
        ("ingest.languages.1=fr", "fr"),
        ("quality.scorers.1.weight=-2.5", -2.5),
        ("quality.scorers.0.lowercase=true", True),
        ("embedding.prompt='passage: '", "passage: "),
        ("materialize.title='a = b, c.d'", "a = b, c.d"),
        ("source.path=s3://bucket/*.parquet?x=1", "s3://bucket/*.parquet?x=1"),
    ],
)
def test_set(path, override, value):
    assert value_at(load_recipe(path, [override]), override.partition("=")[0]) == value


def described(*overrides):
    settings = load_recipe("sample", overrides).materialize
    return settings.title, settings.license, settings.source_datasets


def test_what_describes_the_recipe_s_source_is_left_out_with_another_one():
    own = described()
    assert own == ("FineWeb-Mask sample", "apache-2.0", [])
    assert described("source.path=data_samples/corpus", "materialize.layout=flat") == own
    assert described("source.path=my_corpus") == ("Selected documents", None, [])
    assert described("source={path: my_corpus}", "materialize.license=mit") == ("Selected documents", "mit", [])
    assert described("materialize={license: mit}") == ("Selected documents", "mit", [])
    assert load_recipe("fineweb").materialize.source_datasets
    assert load_recipe("fineweb", ["source.path=x"]).materialize.source_datasets == []


def test_set_changes_nothing_else(path):
    settings = load_recipe(path, ["quality.scorers.1.weight=2"])
    expected = load_recipe(path).model_dump()
    expected["quality"]["scorers"][1]["weight"] = 2.0
    assert settings.model_dump() == expected


def test_the_last_set_wins_and_whole_sections_may_be_set(path):
    settings = load_recipe(path, ["selection.lamb=0.1", "selection={seed: 3}", "selection.seed=4"])
    assert (settings.selection.lamb, settings.selection.seed) == (0.3, 4)


def test_set_fills_a_section_that_the_recipe_leaves_empty(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(RECIPE))
    assert load_recipe(file, ["materialize.layout=flat"]).materialize.layout == "flat"


def test_the_workspace_option_wins(path):
    assert load_recipe(path, ["workspace=a"], workspace="b").workspace == "b"
    assert "workspace: https:// can only be read" in error_of(path, workspace="https://b/c")


SECRET = "hunter2secret"


@pytest.mark.parametrize(
    "override",
    [
        f"source.path=s3://user:{SECRET}@bucket/x",
        f"source.path=https://example.org/x?X-Amz-Signature={SECRET}",
        f"source=https://example.org/x?X-Amz-Signature={SECRET}",
        f"workspace=https://user:{SECRET}@example.org/x",
        f"source.path=[https://example.org/x?sig={SECRET}",
        f"source.format=https://user:{SECRET}@example.org/",
        f"source.path.x=https://user:{SECRET}@example.org/",
    ],
)
def test_an_error_does_not_repeat_a_credential(path, override):
    assert SECRET not in error_of(path, override)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("selection.lamd=0.3", ["selection.lamd: unknown setting", "did you mean 'lamb'?", "solver, metrics"]),
        ("sorce.path=x", ["sorce: unknown setting", "did you mean 'source'?", "workspace, source, ingest"]),
        ("quality.scorers.1.wait=1", ["quality.scorers.1.wait: unknown setting", "positive_label", "weight"]),
        ("quality.scorers.0.labels={path: l, treshold: 4}", ["scorers.0.labels.treshold", "did you mean 'threshold'?"]),
        ("selection.quadmix.omga=0.1", ["selection.quadmix.omga", "did you mean 'omega'?"]),
        ("lamb=0.3", ["lamb: unknown setting; did you mean 'selection.lamb'?"]),
        ("selection.min_chars=3", ["did you mean 'ingest.min_chars'?"]),
        ("selection.solver=meanfield", ["received 'meanfield'; did you mean 'mean_field'?"]),
        ("selection.metrics={facilty: 1}", ["did you mean 'facility'?"]),
        ("quality.scorers.0.kind=fastext", ["received 'fastext'; did you mean 'fasttext'?"]),
        ("ingest.zzz=1", ["ingest.zzz: unknown setting; allowed: min_chars, languages"]),
        ("selection.lamb=2", ["selection.lamb: input should be less than or equal to 1, received 2"]),
        ("selection.solver=magic", ["selection.solver", "'mean_field'", "'greedy'", "received 'magic'"]),
        ("selection.metrics=bogus", ["selection.metrics: input should be 'pairwise'", "received 'bogus'"]),
        ("selection.metrics={bogus: 1}", ["selection.metrics.bogus: input should be 'pairwise'"]),
        ("source.extra_columns=5", ["source.extra_columns: input should be 'all', received 5"]),
        ("ingest.min_chars=many", ["ingest.min_chars: input should be a valid integer", "received 'many'"]),
        ("ingest.languages.1=3", ["ingest.languages.1: input should be a valid string, received 3"]),
        ("quality.scorers.1.weight=.nan", ["quality.scorers.1.weight: input should be a finite number, received nan"]),
        ("quality.scorers.0.model=null", ["quality.scorers.0: a fasttext scorer needs either `model` or `labels`"]),
        ("quality.scorers.1.name=a", ["quality: scorer names must differ, received ['a', 'a']"]),
        (
            "quality.scorers.0.kind=magic",
            ["scorers.0.kind: input should be one of 'fasttext', 'edu', 'column'"],
        ),
        ("quality.scorers.0=5", ["quality.scorers.0: input should be a section with a kind, received 5"]),
        (
            "quality.scorers.0={kind: edu, modle: x}",
            ["0.modle: unknown", "did you mean 'model'?", "max_tokens"],
        ),
        ("quality.scorers.0={kind: column, columns: x}", ["0.columns: unknown", "did you mean 'column'?", "missing"]),
        ("quality.scorers.0={kind: column}", ["quality.scorers.0.column: is required"]),
        ("embedding.model=from_quality", ["embedding.model: from_quality takes one scorer of kind edu", "found 0"]),
        ("source={}", ["source.path: is required"]),
        ("selection=5", ["selection: input should be", "received 5"]),
    ],
)
def test_an_error_names_the_key_what_was_given_and_what_is_allowed(path, override, parts):
    message = error_of(path, override)
    for part in parts:
        assert part in message
    assert "literal[" not in message.replace("literal_", "")


EDU = "quality.scorers.0={kind: edu, name: edu}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("quality.scorers.0={kind: column, column: score, name: edu}", "source.extra_columns=[other]"),
            "quality.scorers.0.column: 'score' is not read: add it to source.extra_columns",
        ),
        (
            (EDU, "quality.scorers.1={kind: edu, name: two}", "embedding.model=from_quality"),
            "embedding.model: from_quality takes one scorer of kind edu in quality.scorers, found 2",
        ),
        ((EDU, "embedding.model=from_quality", "embedding.prompt=x"), "embedding.prompt: with from_quality"),
        ((EDU, "embedding.model=from_quality", "embedding.max_tokens=9"), "embedding.max_tokens: with from_quality"),
    ],
)
def test_sections_that_do_not_fit_together_are_an_error_of_one_line(path, overrides, message):
    assert error_of(path, *overrides).startswith(message)
    assert "received" not in error_of(path, *overrides)


def test_a_scorer_may_take_a_standard_column_or_one_that_is_carried_along(path):
    for column, extra in (("language_score", "[]"), ("score", "[score]"), ("score", "all")):
        scorer = f"quality.scorers.0={{kind: column, column: {column}}}"
        settings = load_recipe(path, [scorer, f"source.extra_columns={extra}"])
        assert settings.quality.scorers[0].column == column


def test_every_problem_has_its_line(path):
    message = error_of(path, "selection.lamb=2", "ingest.minchars=3", "engine.workers=0")
    assert [line.partition(":")[0] for line in message.splitlines()] == [
        "ingest.minchars",
        "selection.lamb",
        "engine.workers",
    ]


@pytest.mark.parametrize("override", ["selection.lamb", "=3", "", "selection"])
def test_an_override_without_a_key_or_a_value_is_an_error(path, override):
    assert error_of(path, override) == f"--set takes section.key=value, received {override!r}"


@pytest.mark.parametrize("override", ["workspace.x=1", "source.path.x=1", "source.path.x.y=1"])
def test_overriding_below_a_value_is_an_error(path, override):
    key = override.partition("=")[0]
    assert error_of(path, override).startswith(f"--set {key}: ")
    assert "is not a section, its value is" in error_of(path, override)


def test_overriding_below_a_value_in_a_list_is_an_error(path):
    assert error_of(path, "ingest.languages.0.x=1") == (
        "--set ingest.languages.0.x: '0' is not a section, its value is 'en'"
    )


@pytest.mark.parametrize("place", ["2", "-1", "first", "1.5", ""])
def test_a_place_outside_a_list_is_an_error(path, place):
    message = error_of(path, f"quality.scorers.{place}.weight=1")
    if place == "1.5":
        assert message.startswith("quality.scorers.1.5: unknown setting")
    else:
        assert message == (f"--set quality.scorers.{place}.weight: {place!r} must be an index of the list, from 0 to 1")


@pytest.mark.parametrize("text", ["[1", "{a: b", "2024-99-99", "!!python/object/apply:os.getcwd []", "'open"])
def test_a_value_that_is_not_yaml_is_an_error(path, text):
    assert (
        error_of(path, f"materialize.title={text}")
        == f"--set materialize.title: the value must be valid YAML, received {text!r}"
    )


@pytest.mark.parametrize("content", [b"source: [", b"a: b: c", b"\xff\xfe\xfa", b"\ttab: 1", b"title: 2024-99-99"])
def test_malformed_yaml_is_an_error_that_names_the_file(tmp_path, content):
    file = tmp_path / "broken.yaml"
    file.write_bytes(content)
    assert error_of(file).startswith(f"the recipe {str(file)!r} is not valid YAML: ")


@pytest.mark.parametrize("content", ["", "just text", "[1, 2]", "3", "null"])
def test_a_recipe_that_is_no_mapping_is_an_error(tmp_path, content):
    file = tmp_path / "flat.yaml"
    file.write_text(content)
    assert "must hold sections such as `source:`, it holds" in error_of(file)


@pytest.mark.parametrize("content", ["text,id\nhello,1\n", 'text,id\n"a: b", [1\n'])
def test_documents_that_are_not_read_are_to_be_converted(tmp_path, content):
    file = tmp_path / "documents.csv"
    file.write_text(content)
    assert "; documents are read from .parquet, .jsonl and .warc.gz files: convert others, a .csv by" in error_of(file)


def test_a_missing_recipe_and_a_folder_are_errors(tmp_path):
    assert error_of(tmp_path / "none.yaml") == (
        f"cannot read the recipe {str(tmp_path / 'none.yaml')!r}: No such file or directory; "
        "recipes that need no file: fineweb, newsgroups, paper, raw-web, sample"
    )
    assert "; did you mean 'sample'? recipes that need no file: fineweb" in error_of("sampel")


@pytest.mark.parametrize("name", ["", "pages.parquet", "pages.jsonl.gz", "*.parquet"])
def test_documents_are_no_recipe_and_what_makes_one_is_said(tmp_path, name):
    assert error_of(tmp_path / name) == (
        f"{str(tmp_path / name)!r} holds documents and is no recipe: run `fineweb-mask run` with it, which makes "
        "one, or `fineweb-mask init`, which writes one to be edited"
    )


@pytest.mark.parametrize("name", ["fineweb", "fineweb.yaml"])
def test_a_name_that_is_no_file_is_a_recipe_of_the_package(name, path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fineweb").mkdir()  # a workspace, perhaps
    assert load_recipe(name).workspace == "workspaces/fineweb"
    path.rename("fineweb.yaml")
    assert load_recipe("fineweb.yaml").workspace == RECIPE["workspace"]


INPUTS_OF_A_RECIPE = {
    "source": {"path": "corpus/*.parquet"},
    "ingest": {
        "filters": [{"kind": "language", "options": {"model": "lid.bin"}}],
        "against": ["older", "s3://bucket/set"],
        "decontaminate": ["exams.parquet"],
    },
    "quality": {
        "scorers": [
            {"kind": "fasttext", "model": "a.bin", "labels": {"path": "labels.parquet"}},
            {"kind": "sidecar", "path": "scores/{shard}.npy"},
        ]
    },
    "embedding": {"model": "encoder"},
    "materialize": {"export": [{"format": "megatron", "tokenizer": "tokenizer.json"}]},
}


def inputs_of(loaded):
    """Return the paths that settings read, in the order of `INPUTS_OF_A_RECIPE`."""
    own, sidecar = loaded.quality.scorers
    return [
        loaded.source.path,
        loaded.ingest.filters[0].options["model"],
        *loaded.ingest.against,
        *loaded.ingest.decontaminate,
        own.model,
        own.labels.path,
        sidecar.path,
        loaded.embedding.model,
        loaded.materialize.export[0].tokenizer,
    ]


@pytest.fixture
def shared_recipe(tmp_path):
    """A recipe with its files in a folder of its own."""
    for name in ("corpus/a.parquet", "lid.bin", "older/x", "exams.parquet", "a.bin", "labels.parquet", "scores/a.npy"):
        file = tmp_path / "team" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for name in ("encoder", "static"):
        (tmp_path / "team" / name).mkdir()
    (tmp_path / "team" / "tokenizer.json").touch()
    file = tmp_path / "team" / "recipe.yaml"
    file.write_text(yaml.safe_dump({"workspace": "workspaces/x", **INPUTS_OF_A_RECIPE}))
    return file


def test_what_a_recipe_reads_starts_from_its_folder_and_the_workspace_from_the_working_folder(
    shared_recipe, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path / "team")
    written = inputs_of(load_recipe("recipe.yaml"))
    assert written[0] == "corpus/*.parquet"
    monkeypatch.chdir(tmp_path)
    below = load_recipe("team/recipe.yaml")
    assert inputs_of(below) == [path if "://" in path else f"team/{path}" for path in written]
    assert below.workspace == "workspaces/x"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = inputs_of(load_recipe(shared_recipe))
    assert found == [path if "://" in path else str(tmp_path / "team" / path) for path in written]


def test_what_is_not_beside_the_recipe_or_is_overridden_starts_from_the_working_folder(shared_recipe, tmp_path):
    (tmp_path / "team" / "a.bin").unlink()
    loaded = load_recipe(shared_recipe, ["source.path=corpus", "embedding.model=static"])
    assert loaded.source.path == "corpus"
    assert loaded.quality.scorers[0].model == "a.bin"
    assert loaded.embedding.model == "static"


def test_a_recipe_of_the_package_finds_the_sample_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loaded = load_recipe("sample")
    assert len(list(Path(loaded.source.path).glob("*.parquet"))) == 4
    assert Path(loaded.quality.scorers[0].labels.path).is_file()
    assert loaded.workspace == "workspaces/sample"


def test_an_unknown_section_is_an_error(path):
    path.write_text(path.read_text() + "\nselektion:\n  lamb: 0.2\n")
    message = error_of(path)
    assert message.startswith("selektion: unknown setting; did you mean 'selection'? allowed: workspace, source")


def test_yaml_that_is_nested_too_deeply_is_an_error(path, tmp_path):
    deep = "[" * 5_000 + "]" * 5_000
    file = tmp_path / "deep.yaml"
    file.write_text(f"source: {deep}\n")
    assert error_of(file).startswith(f"the recipe {str(file)!r} is nested too deeply")
    assert error_of(path, f"source.path={deep}") == "--set source.path: the value must be nested less deeply"


def test_a_tag_of_python_is_not_run(tmp_path):
    file = tmp_path / "hostile.yaml"
    file.write_text(f"workspace: !!python/object/apply:pathlib.Path.touch [{tmp_path / 'ran'}]\n")
    assert "is not valid YAML" in error_of(file)
    assert not (tmp_path / "ran").exists()
