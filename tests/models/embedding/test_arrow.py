"""Vectors converted to Arrow and back."""

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.embedding.arrow import vector_batch, vectors_of
from fineweb_mask.models.forward.batches import unit_vectors
from fineweb_mask.models.schemas import embeddings_schema


def encoded_sample():
    vectors = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32)
    vectors[7] = 0
    vectors[9, 3] = np.nan
    return unit_vectors(vectors)


def stored(encoded, precision):
    schema = embeddings_schema(encoded.vectors.shape[1], precision)
    return pa.Table.from_batches([vector_batch(pa.array(range(40), pa.uint32()), encoded, schema)], schema=schema)


@pytest.mark.parametrize(("precision", "error"), [("float32", 0), ("float16", 1e-3)])
def test_what_is_stored_is_read_back_whole_in_slices_and_in_chunks(precision, error):
    encoded = encoded_sample()
    table = stored(encoded, precision)
    vectors, present = vectors_of(table)
    assert vectors.shape == (40, 16)
    assert vectors.dtype == (np.float32 if precision == "float32" else np.float16)
    assert np.flatnonzero(~present).tolist() == [7, 9]
    assert np.abs(vectors.astype(np.float32) - encoded.vectors)[present].max() <= error
    for rows in (slice(5, 15), slice(0, 0)):
        part, part_present = vectors_of(table[rows])
        np.testing.assert_array_equal(part, vectors[rows])
        np.testing.assert_array_equal(part_present, present[rows])
    twice, _ = vectors_of(pa.concat_tables([table, table]))
    np.testing.assert_array_equal(twice, np.concatenate([vectors, vectors]))
