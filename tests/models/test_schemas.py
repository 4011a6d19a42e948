"""The schemas of the stages' files."""

from fineweb_mask.models.schemas import (
    FINEWEB,
    MASKS,
    MEASURED,
    RESERVED_COLUMNS,
    SOURCE_ROW,
    documents_schema,
    scores_schema,
)
from fineweb_mask.models.settings.quality import RESERVED_NAMES


def test_no_source_column_and_no_scorer_can_take_a_name_of_the_pipeline():
    ours = {SOURCE_ROW.name, *MEASURED.names, *MASKS.names, "quality"}
    assert ours == RESERVED_COLUMNS
    assert set(FINEWEB.names) | ours <= RESERVED_NAMES
    assert set(documents_schema().names) | set(scores_schema([]).names) <= RESERVED_NAMES
