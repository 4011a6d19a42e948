"""Ingest: what is let in, what is dropped and why, and that nothing else changes."""

import hashlib
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.documents import CHARS_PER_TOKEN
from fineweb_mask.models.schemas import documents_schema
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks import ingest
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import ingest_job
from tests.tasks.source_files import discover

LENIENT = IngestSettings(min_chars=1)


def ingest_file(folder, path, settings=LENIENT, **source):
    given = SourceSettings(path=str(path), **source)
    workspace = Workspace(folder)
    [shard] = discover(given)
    file = ingest.ingest(ingest_job(workspace, shard, given, settings))
    return pq.read_table(workspace.resolve(file)), file


@pytest.fixture
def ingest_rows(tmp_path, make_parquet):
    def of(rows, settings=LENIENT, extra=()):
        return ingest_file(tmp_path / "workspace", make_parquet(tmp_path / "rows.parquet", rows, extra), settings)

    return of


def test_the_shard_has_the_schema_the_values_and_the_number_of_tokens(ingest_rows, make_document):
    rows = [make_document(0, text="Née  à\nParis 🎉"), make_document(1, text=None), make_document(2)]
    rows[2] |= {"text": "\ufeffa\x00b \u2028 e\u0301 x \r\n", "token_count": None}
    table, file = ingest_rows(rows)
    assert table.schema.equals(documents_schema())
    for name in ("text", "dump", "url", "date", "file_path", "language", "language_score", "token_count"):
        assert table[name].to_pylist() == [rows[0][name], rows[2][name]]
    estimated = int(np.ceil(len(rows[2]["text"]) / CHARS_PER_TOKEN))
    assert (file.details["tokens"], file.details["tokens_estimated"]) == (rows[0]["token_count"] + estimated, 1)
    for none, dropped in ((rows[1:2], {"null_text": 1}), ([], {})):
        table, file = ingest_rows(none)
        assert table.equals(documents_schema().empty_table())
        assert (file.rows, file.details["rows_in"], file.details["dropped"]) == (0, len(none), dropped)


def test_source_row_counts_the_rows_that_were_dropped(ingest_rows, make_document):
    rows = [make_document(index) for index in range(2_500)]  # of several batches
    for index in (0, 3, 4, 2_100):
        rows[index]["text"] = None
    for index in (9, 2_200):
        rows[index]["text"] = rows[8]["text"]
    table, _ = ingest_rows(rows)
    kept = [index for index in range(len(rows)) if index not in {0, 3, 4, 9, 2_100, 2_200}]
    assert table["source_row"].to_pylist() == kept != table["row"].to_pylist()
    assert table["id"].to_pylist() == [rows[index]["id"] for index in kept]


def test_missing_ids_get_stable_ones_and_repeated_ones_are_counted(ingest_rows, make_document):
    ids = ["given", None, "", None, "given"]
    rows = [make_document(index, id=one) for index, one in enumerate(ids)]
    table, file = ingest_rows(rows)
    made = [hashlib.blake2b(f"rows.parquet\n{place}".encode(), digest_size=16).hexdigest() for place in (1, 2, 3)]
    assert table["id"].to_pylist() == ["given", *(f"fineweb-mask:{digest}" for digest in made), "given"]
    assert file.details["repeated_ids"] == 1
    rows[0]["text"] = "short"
    strict, file = ingest_rows(rows[:4], IngestSettings(min_chars=20))
    assert strict["id"].to_pylist() == table["id"].to_pylist()[1:4]
    assert "repeated_ids" not in file.details


def test_problems_of_json_lines_are_counted_and_source_row_counts_the_lines_that_are_not_blank(tmp_path):
    lines = ['{"text": "a"}', "{", "", '{"text": 3}', r'{"text": "\ud800"}', '{"text": "b"}', "  ", '{"text": null}']
    lines += ['{"text": "a"}', '{"text": "c"}']
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    table, file = ingest_file(tmp_path / "workspace", path)
    source = [line for line in lines if line.strip()]
    found = [json.loads(source[row])["text"] for row in table["source_row"].to_pylist()]
    assert found == table["text"].to_pylist() == ["a", "b", "c"]
    reasons = ("broken_row", "invalid_utf8", "null_text", "wrong_type", "duplicate")
    assert file.details["dropped"] == dict.fromkeys(reasons, 1)
    assert file.details["rows_in"] == 8


def test_numbers_that_do_not_fit_are_counted_and_cost_no_row(tmp_path):
    path = tmp_path / "a.jsonl"
    counts = ["123.0", "1e30", "1.5", '"7"', "NaN", "-1", "null"]
    path.write_text("\n".join(f'{{"text": "number {at}", "token_count": {one}}}' for at, one in enumerate(counts)))
    table, file = ingest_file(tmp_path / "workspace", path)
    assert table["token_count"].to_pylist() == [123, None, None, 7, None, None, None]
    assert (file.details["dropped"], file.details["lost"]) == ({}, {"token_count": 3})


def test_equal_sources_give_equal_bytes_and_a_second_run_reuses_them(tmp_path, corpus):
    first, other, again = (ingest_file(tmp_path / name, corpus / "b.parquet")[1] for name in ("one", "two", "one"))
    assert (tmp_path / "one" / first.path).read_bytes() == (tmp_path / "two" / other.path).read_bytes()
    assert (first.cached, again.cached) == (False, True)


def test_keys_in_the_path_are_in_the_documents_and_in_their_key(tmp_path, make_parquet, make_document):
    rows = [make_document(seed, language=None, dump="here") for seed in range(4)]
    (tmp_path / "language=de" / "dump=there").mkdir(parents=True)
    path = make_parquet(tmp_path / "language=de" / "dump=there" / "a.parquet", rows)
    table, file = ingest_file(tmp_path / "workspace", path, LENIENT.model_copy(update={"languages": ["de"]}))
    assert (table["language"].to_pylist(), table["dump"].to_pylist()) == (["de"] * 4, ["here"] * 4)
    assert file.details["keys_differ"] == {"dump": 4}
    dropped = ingest_file(tmp_path / "other", path, LENIENT.model_copy(update={"languages": ["en"]}))[1]
    assert dropped.details["dropped"] == {"wrong_language": 4}
    source = SourceSettings(path=str(path))
    [shard] = discover(source)
    shards = [shard, *(shard.model_copy(update={"keys": keys}) for keys in ((), (("language", "fr"),)))]
    assert len({ingest_job(Workspace(tmp_path), one, source, LENIENT).key.fingerprint for one in shards}) == 3


def test_a_bad_shard_leaves_no_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"body": "x"}))
    with pytest.raises(BadShardError, match=r"a\.jsonl"):
        ingest_file(tmp_path / "workspace", path)
    assert not list((tmp_path / "workspace").rglob("*.*"))


def test_dropped_rows_are_kept_aside_with_their_reason_and_text(tmp_path):
    same = "A text that is  long enough"
    texts = ["a text that is long enough", "tiny", None, same, "lorem ipsum dolor sit", b"\xff" * 30]
    ids = ["a", "b", "c", "d", None, "f"]
    raw = pa.array([text.encode() if isinstance(text, str) else text for text in texts], pa.binary())
    rows = pa.table({"text": pa.Array.from_buffers(pa.string(), 6, raw.buffers()), "id": ids})
    pq.write_table(rows, tmp_path / "a.parquet")
    source, workspace = SourceSettings(path=str(tmp_path / "a.parquet")), Workspace(tmp_path / "workspace")
    [shard] = discover(source)
    plain = ingest_job(workspace, shard, source, IngestSettings(min_chars=10))
    ingest.ingest(plain)
    before, without = plain.output.read_bytes(), pq.read_table(plain.beside("dropped"))
    assert without["text"].null_count == len(without) == 4
    job = ingest_job(workspace, shard, source, IngestSettings(min_chars=10, keep_dropped=True))
    assert job.key == plain.key
    file = ingest.ingest(job)
    assert not file.cached
    assert job.output.read_bytes() == before
    dropped = pq.read_table(job.beside("dropped")).to_pylist()
    assert {row["source_row"]: (row["id"], row["reason"], row["text"]) for row in dropped} == {
        1: ("b", "too_short", "tiny"),
        2: ("c", "null_text", None),
        3: ("d", "duplicate", same),
        5: ("f", "invalid_utf8", None),
    }
    assert without.drop("text").equals(pq.read_table(job.beside("dropped")).drop("text"))
    assert ingest.ingest(job).cached
    assert ingest.ingest(plain).cached  # the texts cost it nothing
    job.beside("dropped").unlink()
    assert not ingest.ingest(job).cached
