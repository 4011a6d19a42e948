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


def test_documents_hold_fineweb_the_measures_and_then_the_extra_columns():
    extra = pa.field("topic", pa.string())
    names = "row source_row text id dump url date file_path language language_score token_count n_chars content_hash"
    assert documents_schema([extra]).names == [*names.split(), "topic"]
    assert documents_schema([extra]).field("topic") == extra


def test_scores_hold_one_float32_per_scorer_and_the_quality():
    schema = scores_schema(["edu", "fasttext"])
    assert schema.names == ["row", "edu", "fasttext", "quality"]
    assert {field.type for field in list(schema)[1:]} == {pa.float32()}
    assert not any(field.nullable for field in schema)


@pytest.mark.parametrize(("precision", "value"), [("float16", pa.float16()), ("float32", pa.float32())])
def test_embeddings_are_fixed_size_lists(precision, value):
    assert embeddings_schema(5, precision).field("embedding").type == pa.list_(value, 5)


@pytest.mark.parametrize(
    "schema",
    [
        documents_schema(),
        scores_schema(["a"]),
        embeddings_schema(2, "float16"),
        MASKS,
        DUPLICATES,
    ],
)
def test_every_file_starts_with_its_row_and_survives_parquet(schema, tmp_path):
    assert schema.field(0) == ROW == pa.field("row", pa.uint32(), nullable=False)
    pq.write_table(schema.empty_table(), tmp_path / "shard.parquet")
    assert pq.read_schema(tmp_path / "shard.parquet") == schema


def test_no_source_column_and_no_scorer_can_take_a_name_of_the_pipeline():
    ours = {SOURCE_ROW.name, *MEASURED.names, *MASKS.names, "quality"}
    assert ours == RESERVED_COLUMNS
    assert set(FINEWEB.names) | ours <= RESERVED_NAMES
