"""What other corpora and benchmarks hold: found by its normalised text, dropped, and named with its copy."""

import json
import random
import shutil

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.exclusion import DOCUMENTS, ExclusionJob, KnownTexts, check_benchmarks, list_excluded
from fineweb_mask.tasks.ingest import IngestJob, ingest
from fineweb_mask.tasks.source.columns import ColumnError
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.source_files import discover

LENIENT = IngestSettings(min_chars=1)


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path / "workspace")


@pytest.fixture
def old(tmp_path, make_parquet, make_document):
    """A corpus of two files, one document of which has no id and one no text."""
    make_parquet(tmp_path / "old" / "a.parquet", [make_document(0), make_document(1), make_document(2, text=None)])
    make_parquet(tmp_path / "old" / "b.parquet", [make_document(3), make_document(4, id=None)])
    return tmp_path / "old"


def known_job(workspace, *paths):
    files = [file for path in paths for file in find_files(str(path), "ingest.against")]
    return ExclusionJob(root=workspace.address, of="known", files=files)


def ingest_job(workspace, path, known):
    [shard] = find_files(str(path), "source")
    source = SourceSettings(path=str(path), extra_columns=[])
    return IngestJob(root=workspace.address, shard=shard, source=source, settings=LENIENT, known=known)


def test_every_text_is_listed_in_the_order_of_the_hashes(workspace, old, make_document):
    job = known_job(workspace, old)
    assert list_excluded(job).rows == 4
    assert list_excluded(job).cached
    listed = pq.read_table(job.path)
    texts = [make_document(number)["text"] for number in (0, 1, 3, 4)]
    assert listed["content_hash"].to_pylist() == sorted(map(content_hash, texts))
    ids = {make_document(number)["id"] for number in (0, 1, 3)} | {"b.parquet row 1"}
    assert set(listed["id"].to_pylist()) == ids


def test_of_a_workspace_only_the_last_run_s_documents_count(copied, workspace):
    def listed():
        job = known_job(workspace, copied.workspace.root)
        list_excluded(job)
        return pq.read_table(job.path)["content_hash"].to_pylist()

    texts = [text for file in copied.documents for text in copied.read(file)["text"].to_pylist()]
    rows = sorted(map(content_hash, texts))
    assert listed() == rows
    write_catalog(copied.workspace, copied.selection_shards)
    stale = copied.workspace.resolve(copied.documents[0])
    shutil.copy(stale, stale.with_name(f"{stale.name.split('.')[0]}.{'0' * 16}.parquet"))
    assert listed() == rows


def test_known_documents_are_dropped_and_named_with_their_copies(workspace, old, tmp_path, make_parquet, make_document):
    rows = [
        make_document(10),
        make_document(11, text=make_document(1)["text"].upper()),
        make_document(12, text="  " + make_document(4)["text"], id=None),
        make_document(13),
        make_document(14, text=make_document(13)["text"]),
    ]
    path = make_parquet(tmp_path / "new.parquet", rows)
    job = ingest_job(workspace, path, list_excluded(known_job(workspace, old)))
    file = ingest(job)
    assert file.details["dropped"] == {"duplicate": 1, "known": 2}
    assert pq.read_table(workspace.resolve(file))["id"].to_pylist() == [rows[0]["id"], rows[3]["id"]]
    known = pc.field("reason") == "known"
    first, second = pq.read_table(job.beside("dropped"), filters=known).to_pylist()
    assert (first["source_row"], first["id"], first["twin"]) == (1, rows[1]["id"], make_document(1)["id"])
    assert (second["source_row"], second["twin"]) == (2, "b.parquet row 1")
    assert second["id"].startswith("fineweb-mask:")
    assert ingest(job).cached
    job.beside("dropped").unlink()
    assert job.current() is None
    without = ingest_job(workspace, path, None)
    others = without, ingest_job(workspace, path, list_excluded(known_job(workspace, old / "a.parquet")))
    assert len({one.key.fingerprint for one in (job, *others)}) == 3
    assert without.model_copy(update={"settings": LENIENT.model_copy(update={"against": ["x"]})}).key == without.key


def test_hashes_that_share_their_first_half_are_told_apart():
    hashes = [*sorted(bytes(8) + number.to_bytes(8, "big") for number in (0, 1, 5, 300)), b"\xff" * 16]
    table = pa.table([pa.array(hashes, pa.binary(16)), pa.array(list("abcde"), pa.string())], schema=DOCUMENTS)
    known = KnownTexts(table)
    asked = [*hashes, bytes(15) + b"\x02", bytes(14) + b"\x02\x00", b"\xfe" * 16, bytes(7) + b"\x01" + bytes(8)]
    assert known.copies(asked) == [*"abcde", None, None, None, None]
    assert known.copies([]) == []
    assert KnownTexts(table.slice(0, 0)).copies([hashes[0]]) == [None]


QUESTION = "Which of these birds stands on one leg in shallow water while it waits for small fish to come close by?"
PAGE = "A page about the coast and about everything that lives there, written for children of nine years. "
TEXTS = [
    PAGE + "One",
    f"{PAGE} {QUESTION.upper().replace(' ', chr(10))} The heron.",
    PAGE + " ".join(QUESTION.split()[:12]),
    PAGE + "and so on: " + " ".join(QUESTION.split()[1:]),
    "the heron the tern",
    "Name the herons of Zalvora. White ones!",
]


def write_items(path, *items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))


def benchmark_job(folder, name="benchmark.jsonl", **fields):
    files = find_files(str(folder / name), "ingest.decontaminate")
    return ExclusionJob(root=str(folder / "workspace"), of="benchmarks", files=files, **fields)


@pytest.fixture
def decontaminated(tmp_path):
    """Ingest six pages without what is in a benchmark; return the job and the file."""
    items = [
        {"question": None, "answer": "the heron"},
        {"question": QUESTION, "answer": "the heron"},
        {"question": "name the herons of Zalvora", "answer": ["white", "night"], "passage": ""},
    ]
    write_items(tmp_path / "benchmark.jsonl", *items)
    pq.write_table(pa.table({"text": TEXTS}), tmp_path / "pages.parquet")
    workspace = Workspace(tmp_path / "workspace")

    def make(sample=True):
        source = SourceSettings(path=str(tmp_path / "pages.parquet"))
        [shard] = discover(source)
        ingested = IngestSettings(min_chars=5)
        job = benchmark_job(tmp_path, sample=[shard] if sample else [])
        found = IngestJob(root=workspace.address, shard=shard, source=source, settings=ingested)
        found = found.model_copy(update={"benchmarks": list_excluded(job)})
        return found, ingest(found)

    return make


def test_documents_with_an_item_of_a_benchmark_are_dropped_and_listed(decontaminated):
    job, file = decontaminated()
    assert file.details["dropped"] == {"benchmark": 3}
    kept = pq.read_table(job.workspace.resolve(file))
    assert kept["source_row"].to_pylist() == [0, 2, 4]
    listed = pq.read_table(job.beside("dropped")).to_pylist()
    assert [row["source_row"] for row in listed] == [1, 3, 5]
    whole, most, short = (row["twin"] for row in listed)
    assert whole == "benchmark.jsonl row 1, question, score 1.00"
    assert most.startswith("benchmark.jsonl row 1, question, score 0.9")
    assert short == "benchmark.jsonl row 2, question, score 1.00"
    assert job.key != job.model_copy(update={"benchmarks": None}).key
    again, same = decontaminated(sample=False)  # else a new file would change what is dropped of those before it
    assert same.cached
    assert again.key == job.key
    job.beside("dropped").unlink()
    assert not decontaminated()[1].cached


def test_columns_may_have_other_usual_names(tmp_path):
    items = pa.table({"prompt": ["no", QUESTION], "target": [1, 2], "problem": ["x", "y"], "url": ["u", "v"]})
    pq.write_table(items, tmp_path / "benchmark.parquet")
    job = benchmark_job(tmp_path, "benchmark.parquet")
    list_excluded(job)
    listed = pq.read_table(job.path)
    assert listed["name"].to_pylist() == ["benchmark.parquet row 1, question"]
    assert listed["answer"].to_pylist() == ["2"]


def test_files_without_items_are_refused(tmp_path):
    for name, content, message in (
        ("a.jsonl", '{"ask": "Who?", "answer": "I"}\n', r"a\.jsonl has no column 'text', 'question'"),
        ("a.jsonl", "\n\n", r"a\.jsonl has no rows"),
        ("a.parquet", "no Parquet", r"a\.parquet cannot be read"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(ColumnError, match=rf"ingest\.decontaminate: {message}"):
            check_benchmarks(find_files(str(tmp_path / name), "ingest.decontaminate"))
    write_items(tmp_path / "benchmark.jsonl", {"question": "Who?", "answer": "I"}, {"text": "three short words"})
    with pytest.raises(SettingsError, match="at least four words"):
        list_excluded(benchmark_job(tmp_path))


def test_items_that_are_phrases_of_many_documents_are_reported_and_the_corpus_itself_is_no_benchmark(tmp_path, caplog):
    dice, path = random.Random(0), tmp_path / "pages.parquet"
    texts = [f"{QUESTION} {number}" for number in range(9)] + ["other"] * 9
    pq.write_table(pa.table({"text": texts}), path)
    write_items(tmp_path / "benchmark.jsonl", {"question": QUESTION})
    with caplog.at_level("WARNING"):
        assert list_excluded(benchmark_job(tmp_path, sample=find_files(str(path), "path"))).rows == 0
    assert "only 0 of 1 parts of items are looked for" in caplog.text
    pq.write_table(pa.table({"text": [" ".join(dice.choices(QUESTION.split(), k=30)) for _ in range(50)]}), path)
    job = benchmark_job(tmp_path, path.name, sample=find_files(str(path), "path"))
    with pytest.raises(SettingsError, match=r"50 of 50 documents of the source hold items.*ingest\.against"):
        list_excluded(job)
    assert not job.path.exists()
