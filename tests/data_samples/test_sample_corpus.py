"""The committed sample corpus keeps what other tests and the documentation rely on."""

from __future__ import annotations

import importlib.util
import random
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

if TYPE_CHECKING:
    from types import ModuleType

SAMPLES = Path(__file__).parents[2] / "data_samples"
FINEWEB_SCHEMA = pa.schema(
    [
        ("text", pa.string()),
        ("id", pa.string()),
        ("dump", pa.string()),
        ("url", pa.string()),
        ("date", pa.string()),
        ("file_path", pa.string()),
        ("language", pa.string()),
        ("language_score", pa.float64()),
        ("token_count", pa.int64()),
    ]
)


@cache
def shards() -> dict[str, list[dict]]:
    return {path.stem: pq.read_table(path).to_pylist() for path in sorted((SAMPLES / "corpus").glob("*.parquet"))}


@cache
def truth() -> list[dict]:
    return pq.read_table(SAMPLES / "truth.parquet").to_pylist()


@cache
def labels() -> list[dict]:
    return pq.read_table(SAMPLES / "labels.parquet").to_pylist()


@cache
def joined() -> list[tuple[dict, dict]]:
    """Pairs of (row of the corpus, its truth)."""
    return [(shards()[facts["shard"]][facts["row"]], facts) for facts in truth()]


@cache
def generator() -> ModuleType:
    """The generator's command, loaded from its file; it puts its package on the path itself."""
    spec = importlib.util.spec_from_file_location("data_samples_generate", SAMPLES / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def share(flags: list[bool]) -> float:
    return sum(flags) / len(flags)


def shingles(text: str) -> set[tuple[str, ...]]:
    words = text.lower().split()
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}


def test_four_shards_over_three_dumps_have_the_fineweb_schema():
    paths = sorted((SAMPLES / "corpus").glob("*.parquet"))
    assert len(paths) == 4
    assert all(pq.read_schema(path).remove_metadata().equals(FINEWEB_SCHEMA) for path in paths)
    assert len({row["dump"] for rows in shards().values() for row in rows}) == 3
    for name, rows in shards().items():
        assert {row["dump"] for row in rows} == {name.split("_")[0]}


def test_size_stays_small_and_large_enough():
    files = list(SAMPLES.rglob("*.parquet"))
    assert sum(len(rows) for rows in shards().values()) >= 6000
    assert all(path.stat().st_size < 4_000_000 for path in files)
    assert sum(path.stat().st_size for path in files) < 8_000_000


def test_truth_is_aligned_with_the_shards_row_by_row():
    start = 0
    for name, rows in shards().items():
        facts = truth()[start : start + len(rows)]
        assert [fact["shard"] for fact in facts] == [name] * len(rows)
        assert [fact["row"] for fact in facts] == list(range(len(rows)))
        assert [fact["id"] for fact in facts] == [row["id"] for row in rows]
        start += len(rows)
    assert start == len(truth())


def test_topics_are_many_and_very_unequal():
    sizes = Counter(facts["topic"] for facts in truth())
    assert len(sizes) >= 40
    assert max(sizes.values()) >= 400
    assert min(sizes.values()) <= 12


def test_kinds_range_from_reference_text_to_spam():
    kinds = Counter(facts["kind"] for facts in truth())
    assert set(kinds) >= {
        "reference", "tutorial", "essay", "news", "forum", "blog", "listing", "marketing", "boilerplate",
        "keyword_spam", "scraped_spam", "other_language", "empty",
    }  # fmt: skip
    assert 0.08 < share([facts["is_spam"] for facts in truth()]) < 0.2
    assert all(facts["is_spam"] == facts["kind"].endswith("_spam") for facts in truth())
    assert len({facts["topic"] for facts in truth() if facts["is_spam"]}) >= 30


def test_lengths_span_twenty_to_three_thousand_words():
    words = [len((row["text"] or "").split()) for row, facts in joined() if facts["kind"] != "empty"]
    assert sum(count <= 40 for count in words) >= 30
    assert 2500 <= max(words) <= 3500
    assert 250 <= mean(words) <= 400


def test_near_duplicates_are_similar_but_not_equal():
    texts = {row["id"]: row["text"] for row, _ in joined() if row["id"]}
    copies = [(row["text"], texts[facts["near_duplicate_of"]]) for row, facts in joined() if facts["near_duplicate_of"]]
    assert 0.14 < len(copies) / len(truth()) < 0.17
    assert all(copy != source for copy, source in copies)
    sample = random.Random(0).sample(copies, 300)
    similarity = []
    for copy, source in sample:
        a, b = shingles(copy), shingles(source)
        similarity.append(len(a & b) / len(a | b))
    assert min(similarity) >= 0.4
    assert 0.7 < median(similarity) < 0.95


def test_exact_duplicates_lie_within_and_across_shards():
    home = {facts["id"]: (facts["shard"], row["text"]) for row, facts in joined() if facts["id"]}
    same_shard, across, only_form = 0, 0, 0
    for row, facts in joined():
        if facts["exact_duplicate_of"]:
            shard, text = home[facts["exact_duplicate_of"]]
            assert row["text"].lower().split() == text.lower().split()
            same_shard += shard == facts["shard"]
            across += shard != facts["shard"]
            only_form += row["text"] != text
    assert 0.02 < (same_shard + across) / len(truth()) < 0.04
    assert min(same_shard, across, only_form) >= 20


def test_rows_are_as_untidy_as_the_web():
    rows = [row for row, _ in joined()]
    assert 0.01 < share([row["id"] is None for row in rows]) < 0.04
    assert 0.005 < share([row["url"] is None for row in rows]) < 0.02
    assert any(row["text"] is None for row in rows)
    assert any(row["text"] is not None and not row["text"].strip() for row in rows)
    assert any("<script" in (row["text"] or "") for row in rows)
    assert any("â€" in (row["text"] or "") for row in rows)
    assert any("\x00" in (row["text"] or "") for row in rows)
    assert sum(facts["truncated"] for facts in truth()) >= 100
    assert sum(facts["broken"] for facts in truth()) >= 100


def test_other_languages_are_present_and_mostly_labelled():
    foreign = [(row, facts) for row, facts in joined() if facts["language"] != "en"]
    assert 0.03 < len(foreign) / len(truth()) < 0.05
    assert {facts["language"] for _, facts in foreign} == {"de", "es", "fr", "ru"}
    assert 0.8 < share([row["language"] == facts["language"] for row, facts in foreign]) < 1.0
    assert all(0.0 <= row["language_score"] <= 1.0 for row, _ in joined())


def test_ids_are_unique_and_urls_use_reserved_names():
    ids = [row["id"] for row, _ in joined() if row["id"]]
    assert len(set(ids)) == len(ids)
    hosts = {urlparse(row["url"]).netloc for row, _ in joined() if row["url"]}
    assert len(hosts) >= 300
    assert all(host.endswith((".example", ".test")) for host in hosts)


def test_labels_hold_every_score_and_no_text_of_the_corpus():
    scores = Counter(label["score"] for label in labels())
    assert len(labels()) >= 2400
    assert set(scores) == {0, 1, 2, 3, 4, 5}
    assert min(scores.values()) >= 200
    assert not {label["text"] for label in labels()} & {row["text"] for row, _ in joined()}


def test_scores_follow_the_kind_with_some_noise():
    by_kind = {
        kind: [label["score"] for label in labels() if label["kind"] == kind]
        for kind in ("reference", "forum", "keyword_spam")
    }
    assert mean(by_kind["reference"]) > mean(by_kind["forum"]) + 1 > mean(by_kind["keyword_spam"]) + 2
    assert len(set(by_kind["forum"])) >= 5


@pytest.mark.parametrize("name", ["bell_ringing", "curling", "pottery", "chess", "coffee"])
def test_generator_writes_the_committed_pages(name):
    """A topic's pages come from a seed of their own, so a few topics are checked without writing the rest."""
    command = generator()
    corpus = sys.modules["generator.corpus"]
    topics = corpus.load_topics()
    sizes = corpus.topic_sizes(topics, corpus.DOCUMENTS)
    topic, size = next((t, s) for t, s in zip(topics, sizes, strict=True) if t.name == name)
    fresh = {d.text for d in corpus.topic_documents(topic, size, random.Random(f"{command.SEED} {name}"))}
    untouched = {
        row["text"]
        for row, facts in joined()
        if facts["topic"] == name
        and not (facts["truncated"] or facts["broken"])
        and facts["kind"] not in ("empty", "other_language")
    }
    assert untouched
    assert untouched <= fresh
