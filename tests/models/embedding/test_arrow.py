"""Vectors converted to Arrow and back."""

import numpy as np
import pyarrow as pa
import pytest

from fineweb_mask.models.embedding.arrow import vector_batch, vectors_of
from fineweb_mask.models.forward.batches import unit_vectors
from fineweb_mask.models.schemas import embeddings_schema


def encoded_sample(n=200, d=768, seed=0):
    vectors = np.random.default_rng(seed).standard_normal((n, d)).astype(np.float32)
    vectors[7] = 0
    vectors[9, 3] = np.nan
    return unit_vectors(vectors)


def stored(encoded, precision, rows=None):
    schema = embeddings_schema(encoded.vectors.shape[1], precision)
    numbers = pa.array(range(len(encoded.bad)) if rows is None else rows, pa.uint32())
    return pa.Table.from_batches([vector_batch(numbers, encoded, schema)], schema=schema)


@pytest.mark.parametrize(("precision", "error"), [("float32", 0), ("float16", 1e-4)])
def test_what_is_stored_is_read_back(precision, error):
    encoded = encoded_sample()
    table = stored(encoded, precision)
    vectors, present = vectors_of(table)
    assert vectors.shape == (200, 768)
    assert vectors.dtype == (np.float32 if precision == "float32" else np.float16)
    assert np.flatnonzero(~present).tolist() == [7, 9]
    assert np.abs(vectors.astype(np.float32) - encoded.vectors)[present].max() <= error
    assert table["embedding"].null_count == 2


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_slice_of_a_table_holds_its_own_rows(precision):
    encoded = encoded_sample(n=50, d=4)
    table = stored(encoded, precision)
    whole, present = vectors_of(table)
    part, part_present = vectors_of(table.slice(5, 10))
    np.testing.assert_array_equal(part, whole[5:15])
    np.testing.assert_array_equal(part_present, present[5:15])


def test_several_chunks_and_no_rows():
    encoded = encoded_sample(n=20, d=4)
    table = stored(encoded, "float16")
    twice = pa.concat_tables([table, table])
    np.testing.assert_array_equal(vectors_of(twice)[0], np.concatenate([vectors_of(table)[0]] * 2))
    vectors, present = vectors_of(table.slice(0, 0))
    assert (vectors.shape, present.shape) == ((0, 4), (0,))
