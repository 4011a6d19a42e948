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

from tests.corpora import jaccard

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


def test_four_small_shards_over_three_dumps_have_the_fineweb_schema():
    paths = sorted((SAMPLES / "corpus").glob("*.parquet"))
    assert len(paths) == 4
    assert all(pq.read_schema(path).remove_metadata().equals(FINEWEB_SCHEMA) for path in paths)
    assert len({row["dump"] for rows in shards().values() for row in rows}) == 3
    for name, rows in shards().items():
        assert {row["dump"] for row in rows} == {name.split("_")[0]}
    assert len(truth()) >= 6000
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*.parquet")) < 8_000_000


def test_truth_is_aligned_with_the_shards_row_by_row():
    rows = [(name, place, row["id"]) for name, rows in shards().items() for place, row in enumerate(rows)]
    assert [(facts["shard"], facts["row"], facts["id"]) for facts in truth()] == rows


def test_topics_kinds_and_lengths_are_many_and_very_unequal():
    sizes = Counter(facts["topic"] for facts in truth())
    assert len(sizes) >= 40
    assert min(sizes.values()) <= 12
    assert max(sizes.values()) >= 400
    assert {facts["kind"] for facts in truth()} >= {
        "reference", "tutorial", "essay", "news", "forum", "blog", "listing", "marketing", "boilerplate",
        "keyword_spam", "scraped_spam", "other_language", "empty",
    }  # fmt: skip
    assert 0.08 < share([facts["is_spam"] for facts in truth()]) < 0.2
    assert all(facts["is_spam"] == facts["kind"].endswith("_spam") for facts in truth())
    assert len({facts["topic"] for facts in truth() if facts["is_spam"]}) >= 30
    words = [len((row["text"] or "").split()) for row, facts in joined() if facts["kind"] != "empty"]
    assert sum(count <= 40 for count in words) >= 30
    assert 2500 <= max(words) <= 3500
    assert 250 <= mean(words) <= 400


def test_near_duplicates_are_similar_but_not_equal():
    texts = {row["id"]: row["text"] for row, _ in joined() if row["id"]}
    copies = [(row["text"], texts[facts["near_duplicate_of"]]) for row, facts in joined() if facts["near_duplicate_of"]]
    assert 0.14 < len(copies) / len(truth()) < 0.17
    assert all(copy != source for copy, source in copies)
    similarity = [jaccard(*pair, words=3) for pair in random.Random(0).sample(copies, 100)]
    assert min(similarity) >= 0.4
    assert 0.7 < median(similarity) < 0.95


def test_exact_duplicates_lie_within_and_across_shards():
    home = {facts["id"]: (facts["shard"], row["text"]) for row, facts in joined() if facts["id"]}
    found = [(row["text"], facts["shard"], *home[facts["exact_duplicate_of"]])
             for row, facts in joined() if facts["exact_duplicate_of"]]  # fmt: skip
    assert 0.02 < len(found) / len(truth()) < 0.04
    assert all(text.lower().split() == other.lower().split() for text, _, _, other in found)
    assert min(Counter(own == home for _, own, home, _ in found).values()) >= 20
    assert sum(text != other for text, _, _, other in found) >= 20


def test_rows_are_as_untidy_as_the_web():
    rows = [row for row, _ in joined()]
    assert 0.01 < share([row["id"] is None for row in rows]) < 0.04
    assert 0.005 < share([row["url"] is None for row in rows]) < 0.02
    texts = [row["text"] for row in rows]
    assert None in texts
    assert any(text is not None and not text.strip() for text in texts)
    for sign in ("<script", "â€", "\x00"):
        assert any(sign in (text or "") for text in texts), sign
    assert min(sum(facts[name] for facts in truth()) for name in ("truncated", "broken")) >= 100
    ids = [row["id"] for row in rows if row["id"]]
    assert len(set(ids)) == len(ids)
    hosts = {urlparse(row["url"]).netloc for row in rows if row["url"]}
    assert len(hosts) >= 300
    assert all(host.endswith((".example", ".test")) for host in hosts)


def test_other_languages_are_present_and_mostly_labelled():
    foreign = [(row, facts) for row, facts in joined() if facts["language"] != "en"]
    assert 0.03 < len(foreign) / len(truth()) < 0.05
    assert {facts["language"] for _, facts in foreign} == {"de", "es", "fr", "ru"}
    assert 0.8 < share([row["language"] == facts["language"] for row, facts in foreign]) < 1.0
    assert all(0.0 <= row["language_score"] <= 1.0 for row, _ in joined())


def test_labels_hold_every_score_which_follows_the_kind_and_no_text_of_the_corpus():
    labels = pq.read_table(SAMPLES / "labels.parquet").to_pylist()
    scores = Counter(label["score"] for label in labels)
    assert set(scores) == {0, 1, 2, 3, 4, 5}
    assert min(scores.values()) >= 200
    assert not {label["text"] for label in labels} & {row["text"] for row, _ in joined()}
    kinds = ("reference", "forum", "keyword_spam")
    best, middle, worst = ([label["score"] for label in labels if label["kind"] == kind] for kind in kinds)
    assert mean(best) > mean(middle) + 1 > mean(worst) + 2
    assert len(set(middle)) >= 5


@pytest.mark.parametrize("name", ["bell_ringing", "coffee"])
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
