"""Values of the source settings are kept unchanged."""

from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.settings import IngestSettings

WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.integers(1, 10**9), st.floats(0, 1), st.lists(WORDS), st.sampled_from(["corpus", "shard", "off"]))
def test_allowed_values_are_kept_unchanged(min_chars, score, languages, dedup):
    given_values = {
        "min_chars": min_chars,
        "min_language_score": score,
        "languages": languages,
        "filters": [{"kind": "gopher_quality", "options": {"min_doc_words": 20}}],
        "exact_dedup": dedup,
        "near_dedup": "minhash",
        "near_threshold": 0.6,
        "url_dedup": True,
        "copies": {"keep": "longest", "prefer": {"source": ["wiki"]}, "exempt": {"source": ["laws"]}},
        "against": ["workspaces/older"],
        "decontaminate": ["benchmarks/questions.jsonl"],
        "decontaminate_threshold": 0.9,
        "keep_dropped": True,
        "groups": ["dump"],
        "on_wiped_group": "stop",
        "on_bad_shard": "fail",
    }
    assert IngestSettings.model_validate(given_values).model_dump() == given_values
