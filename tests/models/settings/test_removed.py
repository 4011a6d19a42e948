"""What is gone is told in one line, with what to write instead."""

from typing import Any

import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.validation import validated

RECIPE = {
    "workspace": "workspaces/pages",
    "source": {"path": "pages"},
    "quality": {"scorers": [{"kind": "column", "column": "language_score"}]},
}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ({"embedding": {"long_documents": "mean_chunks"}}, "embedding.long_documents: is gone: of a long document"),
        ({"embedding": {"precision": "int8"}}, "embedding.precision: is gone: write float16"),
        ({"ingest": {"copy_text": False}}, "ingest.copy_text: is gone: the workspace holds the texts; delete"),
        ({"ingest": {"near_dedup": "semantic"}}, "ingest.near_dedup: is gone: write minhash; documents of like"),
        ({"ingest": {"copies": {"keep": "best_score"}}}, "ingest.copies.keep: is gone: write earliest or longest"),
        ({"ingest": {"copies": {"one_for_each": "dump"}}}, "ingest.copies.one_for_each: is gone: name the values"),
    ],
)
def test_what_is_gone_is_told_with_what_to_write_instead(content: dict[str, Any], line: str) -> None:
    with pytest.raises(SettingsError) as error:
        validated(PipelineSettings, RECIPE | content)
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)
