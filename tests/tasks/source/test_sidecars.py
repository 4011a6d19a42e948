"""Sidecars: found by the path of the source file, read in the formats that WebOrganizer and Dolma ship."""

import gzip
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings.quality import SidecarScorerSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.sidecars import Sidecars, read_sidecar
from fineweb_mask.tasks.workspace.job import BadShardError

SCORES = [0.5, 2.0, None]


def shard(relative="en/000.jsonl.gz"):
    return SourceShard(name="en-000", relative=relative, url="", format="jsonl", bytes=1, fingerprint="")


def read(path, rows=3, **changes):
    settings = SidecarScorerSettings(path=path, **changes)
    return read_sidecar(Sidecars(settings, by_content=False).beside(shard()), settings, rows)


def write(folder, suffix, records):
    """Write records beside `en/000.jsonl.gz` and return the template of their path."""
    path = folder / "en" / f"000{suffix}"
    path.parent.mkdir(exist_ok=True)
    if suffix == ".npy":
        np.save(path, records)
    elif suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        content = "\n".join(map(json.dumps, records)).encode()
        path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    return f"{folder}/{{shard}}{suffix}"


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json.gz", ".parquet"])
@pytest.mark.parametrize("field", ["score", "attributes.quality"])
def test_a_field_is_read_also_within_others(tmp_path, suffix, field):
    records = [{"id": "x", "score": value, "attributes": {"quality": value}} for value in SCORES]
    np.testing.assert_array_equal(read(write(tmp_path, suffix, records), field=field), [0.5, 2.0, np.nan])


@pytest.mark.parametrize("suffix", [".jsonl.gz", ".parquet"])
def test_the_only_span_of_a_document_is_its_score_as_dolma_has_it(tmp_path, suffix):
    records = [{"attributes": {"a__b__quality": [[0.0, 10.0, value]]}} for value in (0.25, 4.0)]
    path = write(tmp_path, suffix, records)
    assert read(path, 2, field="attributes.a__b__quality").tolist() == [0.25, 4.0]


def test_an_array_has_one_number_per_row_or_a_column_of_them(tmp_path):
    path = write(tmp_path, ".npy", np.array([1, 2, 3], dtype=np.int8))
    assert read(path).tolist() == [1.0, 2.0, 3.0]
    path = write(tmp_path, ".npy", np.arange(6, dtype=np.float16).reshape(3, 2))
    assert read(path, field=1).tolist() == [1.0, 3.0, 5.0]
    with pytest.raises(BadShardError, match=r"its shape is \(3, 2\), `field` is None: set it"):
        read(path)


@pytest.mark.parametrize("array", [np.array(["a", "b", "c"]), np.array([object()] * 3)])
def test_an_array_of_other_things_than_numbers_is_refused(tmp_path, array):
    with pytest.raises(BadShardError, match="cannot read it"):
        read(write(tmp_path, ".npy", array))


def test_another_number_of_rows_is_refused_with_both(tmp_path):
    path = write(tmp_path, ".npy", np.zeros(4))
    with pytest.raises(BadShardError, match=r"000.npy has 4 rows, its source file 3: the scorer 'sidecar' takes one"):
        read(path)


@pytest.mark.parametrize("damage", [b"", b"\x93NUMPY\x01", b"no array"])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = write(tmp_path, ".npy", np.zeros(3))
    (tmp_path / "en" / "000.npy").write_bytes(damage)
    with pytest.raises(BadShardError, match=r"000.npy: the scorer 'sidecar' cannot read it"):
        read(path)


def test_a_cut_archive_and_a_missing_column_are_named(tmp_path):
    path = write(tmp_path, ".jsonl.gz", [{"score": 1.0}] * 500)
    file = tmp_path / "en" / "000.jsonl.gz"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(BadShardError, match="cannot read it"):
        read(path, 500, field="score")
    path = write(tmp_path, ".parquet", [{"score": 1.0}])
    with pytest.raises(BadShardError, match=r"no column 'rank', `field` may name one of \['score'\]"):
        read(path, 1, field="rank")


def test_a_row_that_is_no_score_is_named(tmp_path):
    path = write(tmp_path, ".jsonl", [{"score": 1.0}, {"score": "good"}])
    with pytest.raises(BadShardError, match="row 1 must hold a number or one span with a score, received 'good'"):
        read(path, 2, field="score")


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadShardError, match=r"en/000.npy does not exist, from which the scorer 'sidecar' takes"):
        read(f"{tmp_path}/{{shard}}.npy")


def test_a_changed_file_has_another_fingerprint_by_content_if_asked(tmp_path):
    settings = SidecarScorerSettings(path=write(tmp_path, ".npy", np.zeros(3)))
    path = tmp_path / "en" / "000.npy"

    def fingerprint(*, by_content):
        return Sidecars(settings, by_content=by_content).beside(shard()).fingerprint

    before = [fingerprint(by_content=way) for way in (False, True)]
    os.utime(path, ns=(1, 1))
    assert fingerprint(by_content=False) != before[0]
    assert fingerprint(by_content=True) == before[1]
    np.save(path, np.ones(3))
    assert fingerprint(by_content=True) != before[1]


def test_names_may_begin_before_the_shard_s(tmp_path):
    write(tmp_path, ".npy", np.ones(3))
    (tmp_path / "en" / "000.npy").rename(tmp_path / "topic-000.npy")
    settings = SidecarScorerSettings(path=f"{tmp_path}/topic-{{shard}}.npy")
    found = Sidecars(settings, by_content=False).beside(shard("000.parquet"))
    assert read_sidecar(found, settings, 3).tolist() == [1.0, 1.0, 1.0]
