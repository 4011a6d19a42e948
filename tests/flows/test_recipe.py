"""Recipes: overrides in YAML, and errors that say which key to change and how."""

from pathlib import Path

import pytest
import yaml

from fineweb_mask.flows.recipe import RecipeError, load_recipe

RECIPE = {
    "workspace": "workspaces/x",
    "source": {"path": "corpus"},
    "ingest": {"languages": ["en", "de"]},
    "quality": {"scorers": [{"name": "a", "model": "a.bin"}, {"name": "b", "model": "b.bin"}]},
}


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(RECIPE))
    return file


def error_of(path, *overrides, **arguments):
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides, **arguments)
    return str(caught.value)


def value_at(settings, key):
    for part in key.split("."):
        settings = settings[int(part)] if part.isdecimal() else getattr(settings, part)
    return settings


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("selection.lamb=0.4", 0.4),
        ("selection.budget=", None),
        ("selection.metrics={pairwise: 1, facility: 0.5}", {"pairwise": 1.0, "facility": 0.5}),
        ("selection.policy_gradient.min_lr=1e-3", 0.001),
        ("ingest.languages=[fr, it]", ["fr", "it"]),
        ("ingest.languages.1=fr", "fr"),
        ("quality.scorers.1.weight=-2.5", -2.5),
        ("materialize.title='a = b, c.d'", "a = b, c.d"),
        ("source.path=s3://bucket/*.parquet?x=1", "s3://bucket/*.parquet?x=1"),
    ],
)
def test_set(path, override, value):
    assert value_at(load_recipe(path, [override]), override.partition("=")[0]) == value


def test_what_describes_the_recipe_s_source_is_left_out_with_another_one():
    def described(*overrides):
        settings = load_recipe("sample", overrides).materialize
        return settings.title, settings.license, settings.source_datasets

    own = described()
    assert own == ("FineWeb-Mask sample", "apache-2.0", [])
    assert described("source.path=data_samples/corpus", "materialize.layout=flat") == own
    assert described("source.path=my_corpus") == ("Selected documents", None, [])
    assert described("source={path: my_corpus}", "materialize.license=mit") == ("Selected documents", "mit", [])
    assert described("materialize={license: mit}") == ("Selected documents", "mit", [])
    assert load_recipe("fineweb").materialize.source_datasets
    assert load_recipe("fineweb", ["source.path=x"]).materialize.source_datasets == []


def test_set_changes_nothing_else_the_last_one_wins_and_whole_sections_may_be_set(path):
    expected = load_recipe(path).model_dump()
    expected["quality"]["scorers"][1]["weight"] = 2.0
    assert load_recipe(path, ["quality.scorers.1.weight=2"]).model_dump() == expected
    settings = load_recipe(path, ["selection.lamb=0.1", "selection={seed: 3}", "selection.seed=4"])
    assert (settings.selection.lamb, settings.selection.seed) == (0.3, 4)
    path.write_text(path.read_text() + "materialize:\n")  # a section that is left empty
    assert load_recipe(path, ["materialize.layout=flat"]).materialize.layout == "flat"


@pytest.mark.parametrize(("column", "extra"), [("language_score", "[]"), ("score", "[score]"), ("score", "all")])
def test_a_scorer_may_take_a_standard_column_or_one_that_is_carried_along(path, column, extra):
    scorer = f"quality.scorers.0={{kind: column, column: {column}}}"
    assert load_recipe(path, [scorer, f"source.extra_columns={extra}"]).quality.scorers[0].column == column


def test_the_workspace_option_wins(path):
    assert load_recipe(path, ["workspace=a"], workspace="b").workspace == "b"
    assert "workspace: https:// can only be read" in error_of(path, workspace="https://b/c")


SECRET = "hunter2secret"


@pytest.mark.parametrize(
    "override",
    [
        f"source.path=s3://user:{SECRET}@bucket/x",
        f"source=https://example.org/x?X-Amz-Signature={SECRET}",
        f"source.path=[https://example.org/x?sig={SECRET}",
        f"source.path.x=https://user:{SECRET}@example.org/",
    ],
)
def test_an_error_does_not_repeat_a_credential(path, override):
    assert SECRET not in error_of(path, override)


EDU = "quality.scorers.0={kind: edu, name: edu}"


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ("sorce.path=x", ["sorce: unknown setting; did you mean 'source'?", "all settings: `fineweb-mask settings`"]),
        ("quality.scorers.1.wait=1", ["quality.scorers.1.wait: unknown setting; did you mean 'weight'?"]),
        ("quality.scorers.0.labels={path: l, treshold: 4}", ["scorers.0.labels.treshold", "did you mean 'threshold'?"]),
        ("lamb=0.3", ["lamb: unknown setting; did you mean 'selection.lamb'?"]),
        ("selection.min_chars=3", ["did you mean 'ingest.min_chars'?"]),
        ("source.by_group={}", ["source.by_group: unknown setting; did you mean 'selection.quadmix.by_g"]),
        ("selection.solver=meanfield", ["'greedy'", "received 'meanfield'; did you mean 'mean_field'?"]),
        ("selection.metrics={facilty: 1}", ["did you mean 'facility'?"]),
        ("selection.metrics={bogus: 1}", ["selection.metrics.bogus: input should be 'pairwise'"]),
        ("ingest.zzz=1", ["ingest.zzz: unknown setting; all settings: `fineweb-mask settings`"]),
        ("selection.lamb=2", ["selection.lamb: input should be less than or equal to 1, received 2"]),
        ("source.extra_columns=5", ["source.extra_columns: input should be 'all', received 5"]),
        ("ingest.languages.1=3", ["ingest.languages.1: input should be a valid string, received 3"]),
        ("quality.scorers.1.weight=.nan", ["quality.scorers.1.weight: input should be a finite number, received nan"]),
        ("quality.scorers.0.model=null", ["quality.scorers.0: a fasttext scorer needs either `model` or `labels`"]),
        ("quality.scorers.1.name=a", ["quality: scorer names must differ, received ['a', 'a']"]),
        ("quality.scorers.0.kind=magic", ["scorers.0.kind: input should be one of 'fasttext', 'edu', 'column'"]),
        ("quality.scorers.0.kind=fastext", ["received 'fastext'; did you mean 'fasttext'?"]),
        ("quality.scorers.0=5", ["quality.scorers.0: input should be a section with a kind, received 5"]),
        ("quality.scorers.0={kind: column, columns: x}", ["0.columns: unknown", "did you mean 'column'?"]),
        ("quality.scorers.0={kind: column}", ["quality.scorers.0.column: is required"]),
        ("selection=5", ["selection: input should be", "received 5"]),
        ("embedding.model=from_quality", ["embedding.model: from_quality takes one scorer of kind edu", "found 0"]),
        ((EDU, "embedding.model=from_quality", "embedding.prompt=x"), ["embedding.prompt: with from_quality"]),
        ("selection.lamb", ["--set takes section.key=value, received 'selection.lamb'"]),
        ("=3", ["--set takes section.key=value, received '=3'"]),
        ("source.path.x.y=1", ["--set source.path.x.y: ", "is not a section, its value is"]),
        ("ingest.languages.0.x=1", ["--set ingest.languages.0.x: '0' is not a section, its value is 'en'"]),
        ("quality.scorers.-1.weight=1", ["-1.weight: '-1' must be an index of the list, from 0 to 1"]),
        ("materialize.title={a: b", ["--set materialize.title: the value must be valid YAML, received '{a: b'"]),
        ("materialize.title=2024-99-99", ["the value must be valid YAML, received '2024-99-99'"]),
    ],
)
def test_an_error_names_the_key_what_was_given_and_what_is_allowed(path, overrides, parts):
    message = error_of(path, *([overrides] if isinstance(overrides, str) else overrides))
    for part in parts:
        assert part in message
    assert "literal[" not in message.replace("literal_", "")


def test_every_problem_has_its_line(path):
    message = error_of(path, "selection.lamb=2", "ingest.minchars=3", "engine.workers=0")
    assert [line.partition(":")[0] for line in message.splitlines()] == [
        "ingest.minchars",
        "selection.lamb",
        "engine.workers",
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: b: c", "the recipe {path!r} is not valid YAML: "),
        (b"\xff\xfe\xfa", "the recipe {path!r} is not valid YAML: "),
        (b"title: 2024-99-99", "the recipe {path!r} is not valid YAML: "),
        (b"source: " + b"[" * 1_000 + b"]" * 1_000, "the recipe {path!r} is not valid YAML: "),
        (b"", "must hold sections such as `source:`, it holds"),
        (b"just text", "must hold sections such as `source:`, it holds"),
        (b'text,id\n"a: b", [1\n', "; of documents in .parquet, .jsonl or .warc.gz `fineweb-mask run` makes one"),
        (b"workspace: !!python/object/apply:pathlib.Path.touch [ran]", "is not valid YAML"),
    ],
    ids=range(8),
)
def test_a_file_that_is_no_recipe_is_an_error_that_says_what_is_wrong(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / ("a.csv" if b"," in content else "a.yaml")
    file.write_bytes(content)
    assert message.format(path=str(file)) in error_of(file)
    assert not Path("ran").exists()  # a tag of Python is not run


def test_a_missing_recipe_and_documents_are_errors_that_say_what_to_name(tmp_path):
    assert error_of(tmp_path / "none.yaml") == (
        f"cannot read the recipe {str(tmp_path / 'none.yaml')!r}: No such file or directory; "
        "recipes that need no file: fineweb, newsgroups, paper, raw-web, sample"
    )
    assert "; did you mean 'sample'? recipes that need no file: fineweb" in error_of("sampel")
    (tmp_path / "pages.parquet").write_bytes(b"PAR1\xff")
    for name in ("", "pages.parquet"):
        assert "`fineweb-mask run` makes one, and `fineweb-mask init` one to be edited" in error_of(tmp_path / name)


def test_a_name_that_is_no_file_is_a_recipe_of_the_package(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fineweb").mkdir()  # a workspace, perhaps
    for name in ("fineweb", "fineweb.yaml"):
        assert load_recipe(name).workspace == "workspaces/fineweb"
    path.rename("fineweb.yaml")
    assert load_recipe("fineweb.yaml").workspace == RECIPE["workspace"]
    sample = load_recipe("sample")
    assert len(list(Path(sample.source.path).glob("*.parquet"))) == 4
    assert Path(sample.quality.scorers[0].labels.path).is_file()


@pytest.fixture
def shared_recipe(tmp_path):
    """A recipe with its files in a folder of its own."""
    read = {
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
    files = ("corpus/a.parquet", "lid.bin", "older/x", "exams.parquet", "a.bin", "labels.parquet", "scores/a.npy")
    for name in (*files, "encoder/x", "static/x", "tokenizer.json"):
        file = tmp_path / "team" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    file = tmp_path / "team" / "recipe.yaml"
    file.write_text(yaml.safe_dump({"workspace": "workspaces/x", **read}))
    return file


def inputs_of(loaded):
    """Return the paths that the settings of `shared_recipe` read."""
    own, sidecar = loaded.quality.scorers
    ingest = [loaded.ingest.filters[0].options["model"], *loaded.ingest.against, *loaded.ingest.decontaminate]
    scorers = [own.model, own.labels.path, sidecar.path]
    return [loaded.source.path, *ingest, *scorers, loaded.embedding.model, loaded.materialize.export[0].tokenizer]


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
