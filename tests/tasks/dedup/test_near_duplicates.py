"""Near-duplicates of a corpus: those that a plain comparison of all documents finds, and which of them are kept."""

import random
from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.dedup.minhash import Sketch, band_keys
from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.schemas import documents_schema
from fineweb_mask.models.settings.source import CopiesSettings
from fineweb_mask.tasks.dedup import comparison
from fineweb_mask.tasks.dedup.comparison import BEST, NEIGHBOURS
from fineweb_mask.tasks.dedup.duplicates import dedup, no_duplicates
from fineweb_mask.tasks.workspace.references import NEAR, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, read_duplicates
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.corpora import jaccard, templates
from tests.tasks.jobs import dedup_job

pytest.importorskip("rensa")

SKETCH, THRESHOLD = Sketch(bands=6, rows=4), 0.6
DEFAULT_THRESHOLD = 0.7
WORDS = [f"{one}{other}" for one in "abcdefghij" for other in "klmnopqrst"]


def corpus(seed, shards=4, documents=40):
    """Texts of which some are others with a few words changed, within and across shards; some are very short."""
    dice = random.Random(seed)
    texts: list[str] = []
    for _ in range(shards * documents):
        if texts and dice.random() < 0.4:
            words = dice.choice(texts).split()
            for place in dice.sample(range(len(words)), min(len(words), dice.randint(1, 6))):
                words[place] = dice.choice(WORDS)
        else:
            words = dice.choices(WORDS, k=dice.choice([3, 60, 90]))
        texts.append(" ".join(words))
    names = dice.sample(["a", "b", "en/c", "z", "q"], shards)
    return {name: texts[place * documents : (place + 1) * documents] for place, name in enumerate(names)}


def write(workspace, texts, **columns):
    """Write the documents of shards; `columns` are those of all, one shard after the other."""
    found, start = [], 0
    for name, of_shard in texts.items():
        path = workspace.root / f"{name.replace('/', '-')}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        fields = [documents_schema().field(column) for column in ("row", "text", "n_chars", "content_hash")]
        measured = [[len(text) for text in of_shard], [content_hash(text) for text in of_shard]]
        arrays = [pa.array(range(len(of_shard)), pa.uint32()), of_shard, *measured]
        table = pa.table(arrays, schema=pa.schema(fields))
        for column, values in columns.items():
            table = table.append_column(column, pa.array(values[start : start + len(of_shard)], pa.string()))
        start += len(of_shard)
        pq.write_table(table, path)
        known = {"path": path.name, "rows": len(of_shard), "bytes": 0, "fingerprint": "|".join(of_shard)}
        found.append(StageFile(stage="ingest", name=name, **known))
    return found


def job_of(workspace, texts, columns=None, sketch=SKETCH, threshold=THRESHOLD, exact="off", **copies):
    """Sketch the shards, which came in this order; return the job that compares them and lists what is found."""
    documents = write(workspace, texts, **(columns or {}))
    job = dedup_job(workspace, documents, sketch, exact_dedup=exact, copies=copies)
    return job.model_copy(update={"settings": job.settings.model_copy(update={"near_dedup": threshold})})


def candidates(texts):
    """Return the pairs that are compared, the earlier first: of those that share a band, by plain loops."""
    bands = band_keys(pa.array(texts), SKETCH)
    groups: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for row, keys, following in zip(bands.rows.tolist(), bands.keys, bands.following, strict=True):
        for key, after in zip(keys.tolist(), following.tolist(), strict=True):
            groups[key].append((after, row))
    found = set()
    for group in groups.values():
        first = sorted(row for _, row in group)[:BEST]
        in_order = [row for _, row in sorted(group)]
        for place, row in enumerate(in_order):
            near = in_order[max(0, place - NEIGHBOURS) : place]
            found |= {(min(row, other), max(row, other)) for other in (*first, *near) if other != row}
    return found


def expected(texts, threshold):
    """Return the dropped documents and the kept one of each, by plain loops over all pairs that are compared."""
    places = [(name, row) for name, of_shard in texts.items() for row in range(len(of_shard))]
    every = [text for of_shard in texts.values() for text in of_shard]
    alike: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for earlier, later in sorted(candidates(every)):
        if (similarity := jaccard(every[earlier], every[later])) >= threshold:
            alike[later].append((-similarity, earlier))
    dropped: dict[int, int] = {}
    for later in sorted(alike):
        if kept := [pair for pair in alike[later] if pair[1] not in dropped]:
            dropped[later] = min(kept)[1]
    return {places[one]: places[other] for one, other in dropped.items()}


def listed(job):
    files = job.shard_files()
    assert files is not None
    found = {}
    for file in files:
        assert bool(file.path) == bool(file.rows)
        if file.path:
            table = read_duplicates(job.workspace, file)
            rows = table["row"].to_pylist()
            assert rows == sorted(rows)
            twins = zip(table["twin_shard"].to_pylist(), table["twin_row"].to_pylist(), strict=True)
            found |= dict(zip(((file.name, row) for row in rows), twins, strict=True))
    return found


@pytest.mark.parametrize(("most", "threshold"), [(10**9, THRESHOLD), (300, THRESHOLD), (10**9, 0.5), (10**9, 0.7)])
def test_a_plain_comparison_of_all_documents_finds_the_same(tmp_path, monkeypatch, most, threshold):
    monkeypatch.setattr(comparison, "RANGE_KEYS", most)
    monkeypatch.setattr(comparison, "VERIFIED_PAIRS", 7)
    texts = corpus(1)
    want = expected(texts, threshold)
    assert 10 < len(want) < 100
    assert len(candidates([text for of_shard in texts.values() for text in of_shard])) > len(want)
    job = job_of(Workspace(tmp_path), texts, threshold=threshold)
    file = dedup(job)
    assert listed(job) == want
    assert file.rows == len(want)
    files = job.shard_files() or []
    assert [one.details.get(NEAR, 0) for one in files] == [one.rows for one in files]
    assert dedup(job).cached
    assert dedup(job_of(Workspace(tmp_path / "few"), {"a": ["few words"], "b": []})).rows == 0


def test_copies_of_a_template_s_pages_are_found_among_many_that_share_a_band(tmp_path):
    pages = templates(2_000)
    texts = [*pages.texts, *(f"{text} and one more word" for text in pages.texts[:100])]
    job = job_of(Workspace(tmp_path), {"a": texts}, sketch=Sketch(), threshold=DEFAULT_THRESHOLD)
    dedup(job)
    found = listed(job)
    assert sum(found.get(("a", 2_000 + place)) == ("a", place) for place in range(100)) >= 98
    assert len(found) <= 100 + 20


LONG = " ".join(random.Random(3).choices(WORDS, k=120))
COPIES = {"a": [f"{LONG} one"], "b": [f"{LONG} two more", f"{LONG} three"], "c": [f"{LONG} four more words"]}


@pytest.mark.parametrize(
    ("copies", "kept"),
    [
        ({}, {("a", 0)}),
        ({"keep": "longest"}, {("c", 0)}),
        ({"prefer": {"topic": ["none", "news"]}}, {("b", 0)}),
        ({"prefer": {"topic": ["news"]}, "keep": "longest"}, {("c", 0)}),
        ({"exempt": {"topic": ["news", "none"]}}, {("a", 0), ("b", 0), ("c", 0)}),
        ({"exempt": {"topic": ["law"]}}, {("a", 0), ("b", 0), ("b", 1)}),
        ({"exempt": {"missing": ["law"]}}, {("a", 0)}),  # nothing has the column
    ],
)
def test_the_copy_that_is_asked_for_is_kept(tmp_path, copies, kept):
    topics = {"topic": ["law", "news", "law", "news"]}
    job = job_of(Workspace(tmp_path), COPIES, columns=topics, **copies)
    dedup(job)
    found = listed(job)
    assert {(name, row) for name, texts in COPIES.items() for row in range(len(texts))} - found.keys() == kept
    assert set(found.values()) <= kept
    plain = job_of(Workspace(tmp_path), COPIES)
    settings = plain.settings.model_copy(update={"copies": CopiesSettings(**copies)})
    assert (plain.model_copy(update={"settings": settings}).key != plain.key) == bool(copies)
    assert job_of(Workspace(tmp_path), COPIES, threshold=0.9).key != plain.key


def test_an_exact_duplicate_is_neither_counted_as_near_nor_the_copy_that_is_kept(tmp_path):
    """It is dropped for another document, which must not be dropped for it."""
    workspace = Workspace(tmp_path)
    texts = {"a": [f"{LONG} a word"], "b": [f"{LONG} two words"], "c": [f"{LONG} a word"], "d": []}
    topics = {"topic": ["law", "law", "news", "law"]}
    job = job_of(workspace, texts, exact="corpus", columns=topics, prefer={"topic": ["news"]})
    dedup(job)
    of_a, of_b, of_c, of_d = job.shard_files() or []
    assert (of_a, of_d) == (no_duplicates("a"), no_duplicates("d"))
    assert [(file.rows, file.details) for file in (of_b, of_c)] == [(1, {NEAR: 1}), (1, {"duplicate": 1})]
    assert listed(job) == {("b", 0): ("a", 0), ("c", 0): ("a", 0)}
    texts["c"].append(f"{LONG} three")
    job = job_of(workspace, texts, exact="corpus", columns=topics)
    dedup(job)
    _, _, of_c, _ = job.shard_files() or []
    assert (of_c.rows, of_c.details) == (2, {"duplicate": 1, NEAR: 1})
    assert duplicate_rows(workspace, of_c).tolist() == [0, 1]
    assert [listed(job)["c", row] for row in (0, 1)] == [("a", 0), ("a", 0)]


def test_a_shard_that_is_added_sketches_itself_and_changes_no_other_list(tmp_path):
    workspace = Workspace(tmp_path)
    texts = corpus(7, shards=3)
    added = {"new": [next(iter(texts.values()))[0], " ".join(random.Random(1).choices(WORDS, k=70))]}
    first = job_of(workspace, texts)
    dedup(first)
    before = {file.name: file for file in first.shard_files() or []}
    written = list((tmp_path / "signatures").rglob("*.parquet"))
    times = [path.stat().st_mtime_ns for path in written]
    job = job_of(workspace, texts | added)
    dedup(job)
    assert listed(job) == expected(texts | added, THRESHOLD)
    after = {file.name: file for file in job.shard_files() or []}
    assert all(after[name].fingerprint == file.fingerprint for name, file in before.items())
    assert [path.stat().st_mtime_ns for path in written] == times
