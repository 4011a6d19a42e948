"""The schemas of the stages' files."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.schemas import (
    DUPLICATES,
    FINEWEB,
    MASKS,
    MEASURED,
    RESERVED_COLUMNS,
    ROW,
    SOURCE_ROW,
    documents_schema,
    embeddings_schema,
    scores_schema,
)
from fineweb_mask.models.settings.quality import RESERVED_NAMES

SCHEMAS = [
    documents_schema([pa.field("topic", pa.string())]),
    scores_schema(["edu", "fasttext"]),
    embeddings_schema(2, "float16"),
    embeddings_schema(2, "float32"),
    MASKS,
    DUPLICATES,
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_file_starts_with_its_row_and_survives_parquet(schema, tmp_path):
    assert schema.field(0) == ROW == pa.field("row", pa.uint32(), nullable=False)
    pq.write_table(schema.empty_table(), tmp_path / "shard.parquet")
    assert pq.read_schema(tmp_path / "shard.parquet") == schema


def test_no_source_column_and_no_scorer_can_take_a_name_of_the_pipeline():
    ours = {SOURCE_ROW.name, *MEASURED.names, *MASKS.names, "quality"}
    assert ours == RESERVED_COLUMNS
    assert set(FINEWEB.names) | ours <= RESERVED_NAMES
    assert set(documents_schema().names) | set(scores_schema([]).names) <= RESERVED_NAMES
