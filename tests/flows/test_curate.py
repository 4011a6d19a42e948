"""Curate's form: what a Prefect server checks before it stores the parameters of a run."""

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import is_valid

from fineweb_mask.flows.curate import curate
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.models.settings import PipelineSettings

FORM = parameter_schema(curate.fn).model_dump_for_openapi()
SECRETS = [
    "s3://user:hunter2@bucket/x",
    "simplecache::https://user:p@ss:word@example.org/x",
    "https://example.org/x?X-Amz-Signature=abc",
    "https://example.org/x?a=1&sig=abc",
    "https://example.org/x#access_token=abc",
    "line\nhttps://user:hunter2@example.org",
]
PLAIN = ["a/b", "s3://bucket/x*.parquet", "hf://datasets/me/set@main/x", "http://host:9000/x@y", "/home/a:b@c", "C:\\x"]


def fits(*keys: str, value: object) -> bool:
    settings = load_recipe("sample").model_dump(mode="json", exclude_unset=True)
    section = settings
    for key in keys[:-1]:
        section = section.setdefault(key, {})
    section[keys[-1]] = value
    return is_valid({"settings": settings}, FORM)


FIELDS = [
    ("workspace",),
    ("source", "path"),
    ("materialize", "output"),
    ("embedding", "model"),
    ("materialize", "spill"),
]


@pytest.mark.parametrize("keys", FIELDS, ids=".".join)
def test_a_form_refuses_secrets_before_they_are_stored(keys: tuple[str, ...]) -> None:
    assert [value for value in SECRETS if fits(*keys, value=value)] == []
    assert [value for value in PLAIN if not fits(*keys, value=value)] == []


def test_a_form_refuses_secrets_in_lists_and_takes_every_recipe() -> None:
    assert not fits("ingest", "against", value=["a", SECRETS[0]])
    assert fits("ingest", "against", value=["a", "s3://bucket/x"])
    for name in ("sample", "fineweb", "paper", "newsgroups"):
        settings = load_recipe(name)
        assert isinstance(settings, PipelineSettings)
        assert is_valid({"settings": settings.model_dump(mode="json")}, FORM)
        assert is_valid({"settings": settings.model_dump(mode="json", exclude_unset=True)}, FORM)


def test_a_form_lists_the_stages_that_a_run_can_stop_after() -> None:
    settings = load_recipe("sample").model_dump(mode="json", exclude_unset=True)
    assert is_valid({"settings": settings, "until": "embed"}, FORM)
    assert is_valid({"settings": settings, "until": None}, FORM)
    assert not is_valid({"settings": settings, "until": "emebd"}, FORM)


def test_overrides_in_a_form_take_some_settings_and_no_secrets() -> None:
    settings = load_recipe("sample").model_dump(mode="json", exclude_unset=True)

    def taken(overrides: object) -> bool:
        return is_valid({"settings": settings, "overrides": overrides}, FORM)

    assert taken({"selection": {"lamb": 0.3, "metrics": {"pairwise": 1}}, "workspace": "w"})
    assert taken({})
    assert not taken("lamb=3")
    assert not [
        url for url in SECRETS if taken({"source": {"path": url}}) or taken({"ingest": {"against": ["a", url]}})
    ]
    scorer = {"kind": "fasttext", "model": SECRETS[0]}
    assert not taken({"quality": {"scorers": [scorer]}})
