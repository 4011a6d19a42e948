"""Sidecars: found by the path of the source file, read in the formats that WebOrganizer and Dolma ship."""

import gzip
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.documents import stable_id
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.quality import SidecarScorerSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.source.sidecars import Sidecars, read_sidecar
from fineweb_mask.tasks.workspace.job import BadShardError

SCORES = [0.5, 2.0, None]


def shard(relative="en/000.jsonl.gz"):
    return SourceShard(name="en-000", relative=relative, url="", format="jsonl", bytes=1, fingerprint="")


def documents(ids, source_rows=None):
    """Return what ingest kept of a source file; it makes the ids that are None."""
    rows = range(len(ids)) if source_rows is None else source_rows
    made = [stable_id("en/000", row) if name is None else name for row, name in zip(rows, ids, strict=True)]
    return pa.table({"source_row": pa.array(rows, pa.uint32()), "id": pa.array(made, pa.string())})


def annotations(path, ids, rows, source_rows=None, id_column="id", **changes):
    settings = SidecarScorerSettings(path=path, **changes)
    sidecar = Sidecars(settings, id_column).beside(shard())
    return read_sidecar(sidecar, settings, documents(ids, source_rows), rows)


def read(path, rows=3, **changes):
    return annotations(path, [None] * rows, rows, **changes)[0]


def write(folder, suffix, records):
    """Write records beside `en/000.jsonl.gz` and return the template of their path."""
    path = folder / "en" / f"000{suffix}"
    path.parent.mkdir(exist_ok=True)
    if isinstance(records, bytes):
        path.write_bytes(records)
    elif suffix == ".npy":
        np.save(path, records)
    elif suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        content = "\n".join(map(json.dumps, records)).encode()
        path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    return f"{folder}/{{shard}}{suffix}"


@pytest.mark.parametrize("suffix", [".jsonl", ".json.gz", ".parquet"])
def test_a_field_is_read_also_within_others_and_the_only_span_of_a_document_as_dolma_has_it(tmp_path, suffix):
    records = [{"score": one, "attributes": {"quality": one, "a__b": [[0.0, 10.0, one]]}} for one in SCORES]
    records[2]["attributes"]["a__b"] = None
    for field in ("score", "attributes.quality", "attributes.a__b"):
        np.testing.assert_array_equal(read(write(tmp_path, suffix, records), field=field), [0.5, 2.0, np.nan])


def test_an_array_has_one_number_per_row_or_a_column_of_them(tmp_path):
    assert read(write(tmp_path, ".npy", np.array([1, 2, 3], dtype=np.int8))).tolist() == [1.0, 2.0, 3.0]
    path = write(tmp_path, ".npy", np.arange(6, dtype=np.float16).reshape(3, 2))
    assert read(path, field=1).tolist() == [1.0, 3.0, 5.0]


@pytest.mark.parametrize(
    ("content", "rows", "changes", "told"),
    [
        (np.array(["a", "b", "c"]), 3, {}, "cannot read it"),
        (np.array([object()] * 3), 3, {}, r"000.npy: the scorer 'sidecar' cannot read it"),
        (b"", 3, {}, "cannot read it"),
        (b"\x93NUMPY\x01", 3, {}, "cannot read it"),
        (np.zeros(4), 3, {}, r"000.npy has 4 rows, its source file 3: the scorer 'sidecar' takes one"),
        (np.zeros((3, 2)), 3, {}, r"its shape is \(3, 2\), `field` is None: set it"),
        (None, 3, {}, r"en/000.npy does not exist, from which the scorer 'sidecar' takes"),
        ([{"score": 1.0}], 1, {"field": "rank"}, r"no column 'rank', `field` may name one of \['score'\]"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, content, rows, changes, told):
    path = write(tmp_path, ".parquet" if isinstance(content, list) else ".npy", [] if content is None else content)
    if content is None:
        (tmp_path / "en" / "000.npy").unlink()
    with pytest.raises(BadShardError, match=told):
        read(path, rows, **changes)


def test_a_cut_archive_and_a_row_that_is_no_score_are_named(tmp_path):
    path = write(tmp_path, ".jsonl.gz", gzip.compress(b'{"score": 1.0}\n' * 500)[:-20])
    with pytest.raises(BadShardError, match="cannot read it"):
        read(path, 500, field="score")
    path = write(tmp_path, ".jsonl", [{"score": 1.0}, {"score": "good"}])
    with pytest.raises(BadShardError, match="row 1 must hold a number or one span with a score, received 'good'"):
        read(path, 2, field="score")


def test_names_may_begin_before_the_shard_s_a_changed_file_is_another_and_a_server_of_http_is_refused(tmp_path):
    np.save(tmp_path / "topic-000.npy", np.ones(3))
    settings = SidecarScorerSettings(path=f"{tmp_path}/topic-{{shard}}.npy")
    found = Sidecars(settings).beside(shard("000.parquet"))
    assert read_sidecar(found, settings, documents([None] * 3), 3)[0].tolist() == [1.0, 1.0, 1.0]
    os.utime(tmp_path / "topic-000.npy", ns=(1, 1))
    assert Sidecars(settings).beside(shard("000.parquet")).fingerprint != found.fingerprint
    with pytest.raises(SettingsError, match="http lists no files"):
        Sidecars(SidecarScorerSettings(path="https://example.org/{shard}.npy"))


SUFFIXES = [".jsonl", ".parquet"]


def of_ids(ids, key="id"):
    return [{key: name, "score": place + 0.5} for place, name in enumerate(ids)]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(("key", "ids"), [("ID", "cab"), ("doc_id", "cab"), ("id", [3.0, 1.0, 2.0])])
def test_rows_in_another_order_belong_to_the_documents_of_their_ids(tmp_path, suffix, key, ids):
    path = write(tmp_path, suffix, of_ids(ids, key))
    own = ["1", "2", "3"] if key == "id" else ["a", "b", "c"]  # a number and its text are one id
    found = annotations(path, own, 3, field="score", id_column="doc_id")
    assert (found[0].tolist(), found[1]) == ([1.5, 2.5, 0.5], "id")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_of_dropped_documents_may_be_there_or_not(tmp_path, suffix):
    for ids, expected in ((["c", "dropped", "a"], [2.5, 0.5]), (["c", "a"], [1.5, 0.5])):
        path = write(tmp_path, suffix, of_ids(ids))
        found, _ = annotations(path, ["a", "c"], 3, [0, 2], field="score")
        assert found[[0, 2]].tolist() == expected


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("ids", "told"),
    [
        ("abb", "1 ids in more than one row: b: give one row for each id"),
        ("abx", "1 ids without a row, which its documents have: c"),
        ("xyz", "3 ids without a row, which its documents have: a, b, c"),
        ("cbax", "1 ids of no document of its source file: x"),
    ],
)
def test_ids_that_are_missing_double_or_of_no_document_are_named(tmp_path, suffix, ids, told):
    path = write(tmp_path, suffix, of_ids(ids))
    with pytest.raises(BadShardError, match=f"^000{suffix} has {told}"):
        annotations(path, ["a", "b", "c"], 3, field="score")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_missing_id_has_the_score_for_missing_unless_all_are(tmp_path, suffix, caplog):
    path = write(tmp_path, suffix, of_ids(["c", "a"]))
    scores, _ = annotations(path, ["a", "b", "c"], 3, field="score", missing=0.0)
    np.testing.assert_array_equal(scores, [1.5, np.nan, 0.5])
    assert "has 1 ids without a row, which its documents have: b" in caplog.text
    with pytest.raises(BadShardError, match="2 ids without a row"):
        annotations(path, ["x", "y"], 2, field="score", missing=0.0)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("ids", "own", "joined"),
    [(["a", "a", None], ["a", "a", None], "id"), ("xyz", [None] * 3, "place"), ([None] * 3, "abc", "place")],
    ids=["equal ids in the order of the documents", "ids of the documents are made", "annotations without ids"],
)
def test_where_ids_tell_nothing_rows_belong_together_by_place(tmp_path, suffix, ids, own, joined):
    scores, by = annotations(write(tmp_path, suffix, of_ids(ids)), own, 3, field="score")
    assert (scores.tolist(), by) == ([0.5, 1.5, 2.5], joined)
