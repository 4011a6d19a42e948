"""Whatever stands in a recipe is a setting, or an error of few lines before any work."""

import copy
import itertools
import math
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from fineweb_mask.flows.pipeline.inputs import check_inputs
from fineweb_mask.flows.recipe import RecipeError, change, load_recipe, validate
from fineweb_mask.models.errors import FinewebMaskError
from fineweb_mask.models.settings import PipelineSettings
from tests.flows.test_recipe import RECIPE
from tests.tasks.source_files import write_table


def keys_of(model, before=""):
    """Yield every key of a section and the sections in it, those in a list by the list's first place."""
    for name, field in model.model_fields.items():
        yield before + name
        for inner in models_in(field.annotation):
            yield from keys_of(inner, f"{before}{name}.")
            yield from keys_of(inner, f"{before}{name}.0.")


def models_in(annotation):
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from models_in(argument)


KEYS = sorted(set(keys_of(PipelineSettings)))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates() | st.binary(max_size=9)
VALUES = st.recursive(
    SCALARS | st.sampled_from(["auto", "static", "random", "1GB", "s3://a/b", "hf://a/b/c", "column", 0, 1, -1, 2**63]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(KEYS), VALUES), min_size=1, max_size=4))
def test_any_value_of_any_key_is_a_setting_or_an_error_of_ours(changes):
    content = copy.deepcopy(RECIPE)
    try:
        change(content, changes)
        found = validate(PipelineSettings, content)
    except RecipeError:
        return
    written = found.model_dump_json()
    assert PipelineSettings.model_validate_json(written).model_dump_json() == written


BAD = ["a\0b", "x" * 5_000, True, None, -1, -(2**70), math.nan, [None], {1: {}}]
"""Values of which no setting takes more than a few."""
MOST_LINES = 3


@pytest.mark.parametrize("section", sorted({key.partition(".")[0] for key in KEYS}))
def test_a_bad_value_of_any_setting_is_told_in_few_lines_before_any_work(section, tmp_path, monkeypatch):
    """What passes as a setting is checked against the files and this machine as every command does."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    corpus = write_table(tmp_path / "corpus.parquet", text=["a text of some words"], grade=[1.0])
    sample = {"workspace": str(tmp_path / "w"), "source": {"path": str(corpus)}, "embedding": {"static_dimensions": 16}}
    sample["quality"] = {"scorers": [{"kind": "column", "column": "grade"}]}
    kinds = [{"kind": kind} for kind in ("fasttext", "edu", "perplexity", "column", "sidecar")]
    refused: dict[str, tuple[str, object]] = {}
    for key, value in itertools.product((key for key in KEYS if key.partition(".")[0] == section), BAD):
        for scorer in kinds if key.startswith("quality.scorers.0.") else [None]:
            content = copy.deepcopy(sample) | ({} if scorer is None else {"quality": {"scorers": [dict(scorer)]}})
            try:
                change(content, [(key, value)])
                found = validate(PipelineSettings, content)
                if scorer is None:
                    check_inputs(found)
            except (FinewebMaskError, OSError) as error:  # the command ends with 2
                refused[str(error)] = key, value
    assert refused
    assert not {said: of for said, of in refused.items() if not 0 < len(said.splitlines()) <= MOST_LINES}
    assert not (tmp_path / "w").exists()


@settings(max_examples=20)
@given(st.text() | st.text("[]{}:,-&*!|>'\"%@`# \n\tab01"))
@example("{a: " * 1_000)
def test_any_text_is_a_recipe_or_an_error_of_ours(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("recipe") / "r.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(RecipeError):
        load_recipe(path)
