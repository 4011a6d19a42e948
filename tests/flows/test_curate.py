"""Curate's form: what a Prefect server checks before it stores the parameters of a run."""

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import is_valid

from fineweb_mask.flows.deployed import curate
from fineweb_mask.flows.recipe import load_recipe

FORM = parameter_schema(curate.fn).model_dump_for_openapi()
SECRETS = [
    "s3://user:hunter2@bucket/x",
    "simplecache::https://user:p@ss:word@example.org/x",
    "https://example.org/x?a=1&sig=abc",
    "https://example.org/x#access_token=abc",
    "line\nhttps://user:hunter2@example.org",
]
PLAIN = ["a/b", "s3://bucket/x*.parquet", "hf://datasets/me/set@main/x", "http://host:9000/x@y", "/home/a:b@c", "C:\\x"]


def fits(*keys, value, **parameters):
    settings = load_recipe("sample").model_dump(mode="json", exclude_unset=True)
    section = settings
    for key in keys[:-1]:
        section = section.setdefault(key, {})
    section |= dict.fromkeys(keys[-1:], value)
    return is_valid({"settings": settings, **parameters}, FORM)


@pytest.mark.parametrize("key", ["workspace", "source.path", "embedding.model"])
def test_a_form_refuses_secrets_before_they_are_stored(key):
    assert [value for value in SECRETS if fits(*key.split("."), value=value)] == []
    assert [value for value in PLAIN if not fits(*key.split("."), value=value)] == []


def test_a_form_refuses_secrets_in_lists_and_takes_every_recipe():
    assert not fits("ingest", "against", value=["a", SECRETS[0]])
    assert fits("ingest", "against", value=["a", "s3://bucket/x"])
    for name in ("sample", "fineweb", "paper", "newsgroups"):
        for exclude_unset in (False, True):
            settings = load_recipe(name).model_dump(mode="json", exclude_unset=exclude_unset)
            assert is_valid({"settings": settings}, FORM)


def test_a_form_lists_the_stages_that_a_run_can_stop_after():
    assert [fits(value=None, until=until) for until in ("embed", None, "emebd")] == [True, True, False]
