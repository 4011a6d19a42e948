"""The committed sample corpus keeps what other tests and the documentation rely on."""

import random
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path
from statistics import mean, median

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.schemas import FINEWEB
from tests.corpora import jaccard

SAMPLES = Path(__file__).parents[2] / "data_samples"


@cache
def shards():
    return {path.stem: pq.read_table(path).to_pylist() for path in sorted((SAMPLES / "corpus").glob("*.parquet"))}


@cache
def truth():
    return pq.read_table(SAMPLES / "truth.parquet").to_pylist()


@cache
def joined():
    """Pairs of (row of the corpus, its truth)."""
    return [(shards()[facts["shard"]][facts["row"]], facts) for facts in truth()]


def test_four_small_shards_over_three_dumps_have_the_fineweb_schema():
    paths = sorted((SAMPLES / "corpus").glob("*.parquet"))
    assert len(paths) == 4
    assert all(pq.read_schema(path).remove_metadata().equals(FINEWEB) for path in paths)
    assert len({row["dump"] for rows in shards().values() for row in rows}) == 3
    for name, rows in shards().items():
        assert {row["dump"] for row in rows} == {name.split("_")[0]}
    assert len(truth()) >= 6000
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*.parquet")) < 8_000_000


def test_truth_is_aligned_with_the_shards_row_by_row():
    rows = [(name, place, row["id"]) for name, rows in shards().items() for place, row in enumerate(rows)]
    assert [(facts["shard"], facts["row"], facts["id"]) for facts in truth()] == rows


def test_near_duplicates_are_similar_but_not_equal():
    texts = {row["id"]: row["text"] for row, _ in joined() if row["id"]}
    copies = [(row["text"], texts[facts["near_duplicate_of"]]) for row, facts in joined() if facts["near_duplicate_of"]]
    assert 0.14 < len(copies) / len(truth()) < 0.17
    assert all(copy != source for copy, source in copies)
    similarity = [jaccard(*pair, words=3) for pair in random.Random(0).sample(copies, 100)]
    assert min(similarity) >= 0.4
    assert 0.7 < median(similarity) < 0.95


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
    command = import_module("data_samples.generate")  # it puts its package on the path itself
    corpus = import_module("generator.corpus")
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
