"""Selecting from one file of vectors and scores."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.tasks.comparison.vector_file import VectorFileError, read_vectors, select_file
from fineweb_mask.tasks.storage.parquet import DamagedFileError

N, D = 60, 6
FLOATS = pa.list_(pa.float32())
LIST_TYPES = {
    "list<double>": pa.list_(pa.float64()),
    "large_list<float>": pa.large_list(pa.float32()),
    "fixed_size_list<halffloat>": pa.list_(pa.float16(), D),
}
SETTINGS = SelectionSettings(select_ratio=0.25, metrics="pairwise")


@pytest.fixture
def vectors():
    features = np.random.default_rng(0).normal(size=(N, D)).astype(np.float16).astype(np.float32)
    return features / np.linalg.norm(features, axis=1, keepdims=True)


def written(path, vectors, kind=FLOATS, **columns):
    dtype = kind.value_type.to_pandas_dtype()
    table = {
        "chunk_id": [f"chunk-{index}" for index in range(N)],
        "quality_score": np.linspace(0, 1, N, dtype=np.float32),
        "feature_arr": pa.array([None if row is None else np.asarray(row, dtype=dtype) for row in vectors], kind),
        **columns,
    }
    pq.write_table(pa.table(table), path, row_group_size=17)
    return path


@pytest.mark.parametrize("kind", LIST_TYPES.values(), ids=LIST_TYPES)
def test_every_kind_of_list_is_read(tmp_path, vectors, kind):
    read = read_vectors(written(tmp_path / "in.parquet", vectors, kind), "feature_arr")
    assert read.dtype == (np.float16 if pa.types.is_float16(kind.value_type) else np.float32)
    np.testing.assert_allclose(read, vectors, atol=1e-3)


def test_output_is_what_select_selects(tmp_path, vectors):
    source = written(tmp_path / "in.parquet", vectors)
    result = select_file(source, tmp_path / "out.parquet", SETTINGS, device="cpu")
    expected = select(vectors, np.linspace(0, 1, N, dtype=np.float32), SETTINGS)
    rows = pq.read_table(tmp_path / "out.parquet")
    assert rows.column_names == ["chunk_id", "quality_score", "inclusion"]
    assert rows["chunk_id"].to_pylist() == [f"chunk-{index}" for index in expected.indices]
    np.testing.assert_array_equal(rows["inclusion"].to_numpy(), expected.inclusion[expected.indices])
    assert (result.documents, result.selected) == (N, 15)
    assert result.objective == pytest.approx(expected.objective)


def test_a_budget_of_tokens(tmp_path, vectors):
    tokens = np.random.default_rng(1).integers(10, 100, N)
    source = written(tmp_path / "in.parquet", vectors, tokens=tokens)
    settings = SelectionSettings(select_ratio=0.25, budget_by="tokens")
    select_file(source, tmp_path / "out.parquet", settings, token_column="tokens", device="cpu")
    rows = pq.read_table(tmp_path / "out.parquet")
    assert rows.column_names == ["chunk_id", "quality_score", "inclusion"]
    chosen = [int(name.removeprefix("chunk-")) for name in rows["chunk_id"].to_pylist()]
    assert 0.9 * 0.25 * tokens.sum() <= tokens[chosen].sum() <= 0.25 * tokens.sum()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        pytest.param({"vector": None}, VectorFileError, r"'feature_arr', row 41", id="null"),
        pytest.param({"vector": [0.1, 0.2]}, VectorFileError, r"'feature_arr', row 41", id="short"),
        pytest.param({"vector": [np.nan] * D}, SelectionInputError, r"'feature_arr'.*41", id="no number"),
        pytest.param({"quality": None}, SelectionInputError, r"quality.*41", id="no quality"),
    ],
)
def test_a_bad_row_is_named_and_nothing_is_written(tmp_path, vectors, changes, error, message):
    bad = changes.get("vector", vectors[41])
    quality = pa.array([changes.get("quality", 0.5) if index == 41 else 0.5 for index in range(N)])
    source = written(tmp_path / "in.parquet", [*vectors[:41], bad, *vectors[42:]], quality_score=quality)
    with pytest.raises(error, match=message):
        select_file(source, tmp_path / "out.parquet", SETTINGS, device="cpu")
    assert not (tmp_path / "out.parquet").exists()


def test_wrong_columns_and_files_are_named(tmp_path, vectors):
    source = written(tmp_path / "in.parquet", vectors)
    (tmp_path / "no.parquet").write_text("no")
    for path, columns, error, message in (
        (source, {"id_column": "nope"}, VectorFileError, "no column 'nope'"),
        (source, {"quality_column": "chunk_id"}, SelectionInputError, "'chunk_id'.* must hold numbers"),
        (source, {"feature_column": "quality_score"}, VectorFileError, "'quality_score' must be a list"),
        (tmp_path / "no.parquet", {}, DamagedFileError, "no.parquet"),
    ):
        with pytest.raises(error, match=message):
            select_file(path, tmp_path / "out.parquet", SETTINGS, device="cpu", **columns)
