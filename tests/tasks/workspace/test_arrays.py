"""Named arrays come back as they were written."""

import numpy as np
import pytest

from fineweb_mask.tasks.workspace.arrays import read_arrays, write_arrays
from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.stage_parquet import key_and_details, read_footer

KEY = StageKey(stage="test", version=1, settings="a", inputs="b")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12, dtype=np.float16).reshape(3, 4),
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.array(np.pi),
        np.empty((0, 7), dtype=np.float32),
        np.array([b"pairwise", b"disf"]),
        np.array([1, 2**62], dtype=np.int64),
        np.array([True, False]),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_an_array_comes_back(tmp_path, array):
    path = tmp_path / "file.parquet"
    write_arrays(path, KEY, {"one": array, "two": np.zeros(2)}, {})
    found = read_arrays(path)
    assert list(found) == ["one", "two"]
    assert found["one"].dtype == array.dtype
    assert found["one"].shape == array.shape
    np.testing.assert_array_equal(found["one"], array)
    assert found["one"].flags.writeable


def test_equal_arrays_give_equal_bytes_and_details_are_in_the_footer(tmp_path):
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path in paths:
        write_arrays(path, KEY, {"x": np.arange(5)}, {"passes": 2})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert key_and_details(read_footer(paths[0])) == (KEY, {"passes": 2})


def test_there_may_be_no_arrays(tmp_path):
    write_arrays(tmp_path / "a.parquet", KEY, {}, {})
    assert read_arrays(tmp_path / "a.parquet") == {}


def test_arrays_of_one_prefix_are_read_alone(tmp_path):
    arrays = {"a/x": np.arange(3), "a/y": np.arange(2), "b/x": np.arange(5)}
    write_arrays(tmp_path / "file.parquet", KEY, arrays, {})
    assert list(read_arrays(tmp_path / "file.parquet", "a")) == ["a/x", "a/y"]
    assert list(read_arrays(tmp_path / "file.parquet", "b")) == ["b/x"]
    assert read_arrays(tmp_path / "file.parquet", "c") == {}
