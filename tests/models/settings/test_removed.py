"""What to write instead of a setting that is gone: one line."""

import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.validation import validated

WHOLE = {
    "workspace": "w",
    "source": {"path": "corpus"},
    "quality": {"scorers": [{"kind": "column", "column": "score"}]},
}
CONVERT = "is gone: convert the dataset's Parquet files with the library's own converter"


@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        ({"materialize": {"export": [{"format": "litdata"}]}}, f"materialize.export.0.format: {CONVERT}"),
        ({"materialize": {"export": [{"format": "mds"}]}}, f"materialize.export.0.format: {CONVERT}"),
        (
            {"materialize": {"format": "jsonl.zst"}},
            "materialize.format: is gone, the files are Parquet: DuckDB writes lines of JSON: "
            "COPY (FROM 'dataset/**/*.parquet') TO 'x.jsonl.zst' (FORMAT json, COMPRESSION zstd)",
        ),
    ],
    ids=str,
)
def test_a_setting_that_is_gone_is_answered_with_what_to_write_instead(recipe, line):
    with pytest.raises(SettingsError) as caught:
        validated(PipelineSettings, WHOLE | recipe)
    assert str(caught.value) == line
