"""The schemas of the stages' files."""

import numpy as np
import pyarrow as pa

from fineweb_mask.models.schemas import (
    FINEWEB,
    MASKS,
    MEASURED,
    RESERVED_COLUMNS,
    SOURCE_ROW,
    documents_schema,
    embeddings_schema,
    scores_schema,
    vectors_of,
)
from fineweb_mask.models.settings.quality import RESERVED_NAMES


def test_no_source_column_and_no_scorer_can_take_a_name_of_the_pipeline():
    ours = {SOURCE_ROW.name, *MEASURED.names, *MASKS.names, "quality"}
    assert ours == RESERVED_COLUMNS
    assert set(FINEWEB.names) | ours <= RESERVED_NAMES
    assert set(documents_schema().names) | set(scores_schema([]).names) <= RESERVED_NAMES


def test_vectors_are_read_whole_in_slices_and_in_chunks():
    expected = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float16)
    schema = embeddings_schema(16)
    column = pa.FixedSizeListArray.from_arrays(pa.array(expected.reshape(-1)), type=schema.field("embedding").type)
    table = pa.table([pa.array(range(40), pa.uint32()), column], schema=schema)
    for rows in (slice(0, 40), slice(5, 15), slice(0, 0)):
        found = vectors_of(table[rows])
        assert found.dtype == np.float16
        np.testing.assert_array_equal(found, expected[rows])
    np.testing.assert_array_equal(vectors_of(pa.concat_tables([table, table])), np.concatenate([expected, expected]))
