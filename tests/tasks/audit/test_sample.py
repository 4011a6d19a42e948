"""A sample is spread over the files, and what is planted in it is where the cases say."""

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.audit.planting import prose
from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.errors import DataError, SettingsError
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks.audit import score_check
from fineweb_mask.tasks.audit.sample import CASES, EDITS, SAMPLED, SOURCE, benchmark_items, check_sample, draw_source
from fineweb_mask.tasks.source.columns import settle
from fineweb_mask.tasks.source.discovery import discover
from tests.corpora import of_kind


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Three files of prose with a column of their own, and one that cannot be read."""
    folder = tmp_path_factory.mktemp("source")
    texts = of_kind(prose, "prose", 1_200).texts
    for number in range(3):
        part = texts[number * 400 : number * 400 + 400]
        ids = [f"{number}-{row}" for row in range(400)]
        sites = pa.array([f"site {row % 4}" for row in range(400)])
        pq.write_table(pa.table({"text": part, "id": ids, "site": sites}), folder / f"{number}.parquet")
    (folder / "00broken.parquet").write_bytes(b"PAR1")
    return SourceSettings(path=str(folder))


def drawn(source, folder, ingest=None, by="site", documents=900):
    draw_source(folder, settle(discover(source), source), source, ingest or IngestSettings(), by, documents)
    cases = pq.read_table(folder / CASES).to_pylist()
    tables = {path.stem: pq.read_table(path).to_pylist() for path in sorted((folder / SOURCE).iterdir())}
    assert [(one["shard"], one["source_row"]) for one in cases] == [
        (name, row) for name, table in tables.items() for row in range(len(table))
    ]
    return cases, tables


def test_documents_are_drawn_from_every_file_that_can_be_read(source, tmp_path):
    cases, tables = drawn(source, tmp_path)
    sampled = [one for one in cases if one["kind"] == SAMPLED]
    assert sum(len(table) for table in tables.values()) == len(cases)
    per_file = Counter(tables[one["shard"]][one["source_row"]]["id"].partition("-")[0] for one in sampled)
    assert len(per_file) == 3
    assert max(per_file.values()) - min(per_file.values()) <= 120  # what a broken file was to give is of those after it
    assert len(sampled) == pytest.approx(900, abs=1)
    assert {one["group"] for one in sampled} == {f"site {number}" for number in range(4)}
    for one in sampled:
        assert tables[one["shard"]][one["source_row"]]["site"] == one["group"]


def test_copies_stand_in_the_file_of_their_original_with_its_columns(source, tmp_path):
    cases, tables = drawn(source, tmp_path)
    kinds = Counter(one["kind"] for one in cases)
    assert {kinds[kind] for kind in ("copy", *EDITS, "clean", "template")} == {20}
    assert kinds["benchmark"] == kinds["short benchmark"] == 0
    for one in (one for one in cases if one["original"] is not None):
        copy, own = (tables[one["shard"]][row] for row in (one["source_row"], one["original"]))
        assert copy["site"] == own["site"]
        assert copy["id"].startswith("planted ")
        old, new = own["text"].split(), copy["text"].split()
        changed = sum(a != b for a, b in zip(old, new, strict=True))
        assert changed == round(EDITS.get(one["kind"], 0) * len(old))
        assert (content_hash(copy["text"]) == content_hash(own["text"])) is (one["kind"] == "copy")


def test_planted_pages_have_the_language_that_is_kept_and_clean_ones_are_english(source, tmp_path):
    for language, clean in (("en", 20), ("de", 0)):
        cases, tables = drawn(source, tmp_path / language, IngestSettings(languages=[language]))
        own = [one for one in cases if one["kind"] in {"clean", "template"}]
        assert {tables[one["shard"]][one["source_row"]]["language"] for one in own} == {language}
        assert sum(one["kind"] == "clean" for one in own) == clean


def test_benchmark_items_stand_within_clean_pages_and_short_ones_are_apart(source, tmp_path):
    items = [
        f"question {number} asks which of the rivers runs through the town of the two towers" for number in range(9)
    ]
    items += [f"a short item {number}" for number in range(5)]
    pq.write_table(pa.table({"text": [*items, None, " "]}), tmp_path / "bench.parquet")
    ingest = IngestSettings(decontaminate=[str(tmp_path / "bench.parquet")])
    assert benchmark_items(ingest)[10] == ("bench.parquet row 10", "a short item 1")
    cases, tables = drawn(source, tmp_path / "drawn", ingest)
    texts = {
        kind: [tables[one["shard"]][one["source_row"]]["text"] for one in cases if one["kind"] == kind]
        for kind in ("benchmark", "short benchmark")
    }
    assert sorted(item for item in items for text in texts["benchmark"] if f"\n\n{item}\n\n" in text) == items[:9]
    assert len(texts["short benchmark"]) == 5


def test_it_is_the_same_every_time(source, tmp_path):
    assert drawn(source, tmp_path / "a") == drawn(source, tmp_path / "b")


def test_what_cannot_be_drawn_is_refused(source, tmp_path, monkeypatch):
    shards = settle(discover(source), source)
    with pytest.raises(SettingsError, match="--documents must be at least 1,000, fewer tell nothing: received 999"):
        check_sample(shards, source, None, 999)
    with pytest.raises(SettingsError, match=r"--by nosuch: no document will have this column: name one of .*site"):
        check_sample(shards, source, "nosuch", 1_000)
    with pytest.raises(SettingsError, match="--by text: "):
        check_sample(shards, source, "text", 1_000)
    check_sample(shards, source, "site", 1_000)
    monkeypatch.setattr(score_check, "MOST_GROUPS", 100)
    with pytest.raises(DataError, match=r"--by id: it has 9\d\d values in 9\d\d documents, which are no groups"):
        drawn(source, tmp_path, by="id")


def test_a_source_of_which_nothing_can_be_read_says_why(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"no document can be read of 1 files: a\.parquet"):
        drawn(SourceSettings(path=str(tmp_path / "in")), tmp_path / "out")
