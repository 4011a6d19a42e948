"""Held-out documents: drawn before the selection, by hash, and nothing like them is left for training."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from fineweb_mask.models.dedup.ngrams import ngram_hashes
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.probe.settings import GROUPS, POOL
from fineweb_mask.tasks.probe.held_out import HeldOut, _unit, excluded_counts, hold_out
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows
from fineweb_mask.tasks.workspace.workspace import Workspace


@pytest.fixture(scope="module")
def held_out(probed: Any) -> HeldOut:
    return HeldOut.read(probed.built.workspace, probed.held_out)


def test_each_set_has_as_many_documents_as_asked_for(probed: Any, held_out: HeldOut) -> None:
    rows = held_out.documents.to_pylist()
    assert Counter(row["set"] for row in rows)[POOL] == 30
    assert Counter(row["set"] for row in rows)["theirs"] == 30  # of 40
    of_topics = Counter(row["group"] for row in rows if row["group"] is not None)
    assert of_topics.keys() == {"sea", "kitchen", "space"}
    assert all(count >= 12 for count in of_topics.values())
    assert len({(row["shard"], row["row"]) for row in rows if row["shard"]}) == len(rows) - 30  # none twice
    assert {row["set"] for row in rows} == {POOL, GROUPS, "theirs"}


def test_a_row_is_the_document_that_it_names(probed: Any, held_out: HeldOut) -> None:
    for shard in probed.hold_out.shards:
        table = probed.built.read(shard.documents)
        own = held_out.documents.filter(pc.equal(held_out.documents["shard"], shard.name))
        taken = table.take(own["row"].cast("int64"))
        assert taken["text"].to_pylist() == own["text"].to_pylist()
        assert taken["topic"].to_pylist() == own["group"].to_pylist()
        assert all(
            f"//{cluster}/" in url
            for cluster, url in zip(own["cluster"].to_pylist(), taken["url"].to_pylist(), strict=True)
        )


def test_the_draw_depends_on_the_texts_only(probed: Any, tmp_path: Any, held_out: HeldOut) -> None:
    """The same documents in shards of another order."""
    job = probed.hold_out.model_copy(update={"shards": probed.hold_out.shards[::-1], "force": True})
    moved = Workspace(tmp_path)
    for shard in job.shards:
        for file in (shard.documents, shard.duplicates, shard.embeddings):
            if not file.path:
                continue
            target = moved.root / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(job.workspace.resolve(file).read_bytes())
    again = HeldOut.read(moved, hold_out(job.model_copy(update={"root": str(tmp_path)})))
    key = [("text", "ascending")]
    assert again.documents.sort_by(key).equals(held_out.documents.sort_by(key))


def test_no_arm_may_select_what_is_held_out_or_like_it(probed: Any, held_out: HeldOut) -> None:
    """Against plain references: rows, cosines of all pairs, and words in common."""
    kept_away = {(row["shard"], row["row"]) for row in held_out.documents.to_pylist() if row["shard"] is not None}
    known = set(held_out.ngrams.tolist())
    counts: Counter[str] = Counter()
    shards = probed.hold_out.shards
    vectors = {shard.name: _unit(probed.hold_out.workspace, shard.embeddings) for shard in shards}
    others = np.stack([vectors[shard][row] for shard, row in sorted(kept_away)])
    for shard in shards:
        documents = probed.built.read(shard.documents)
        duplicates = set(duplicate_rows(probed.hold_out.workspace, shard.duplicates).tolist())
        expected = set()
        for row, text in enumerate(documents["text"].to_pylist()):
            reasons = {
                "duplicate": row in duplicates,
                "held_out": (shard.name, row) in kept_away,
                "near_duplicate": bool((others @ vectors[shard.name][row] >= 0.95).any()),
                "shared_words": bool(known & set(ngram_hashes(text).tolist())),
            }
            if any(reasons.values()):
                counts[next(reason for reason, holds in reasons.items() if holds)] += 1
                expected.add(row)
        assert set(probed.built.read(probed.excluded[shard.name])["row"].to_pylist()) == expected
    found = excluded_counts(probed.excluded)
    assert {reason: rows for reason, rows in found.items() if rows} == dict(counts)
    assert found["held_out"] == len(kept_away)


def test_a_document_with_13_words_of_a_benchmark_is_left_out(
    probed: Any, tmp_path: Any, make_parquet: Any, make_document: Any
) -> None:
    shard = probed.hold_out.shards[0]
    free = set(range(shard.rows)) - set(probed.built.read(probed.excluded[shard.name])["row"].to_pylist())
    row = min(free)
    words = probed.built.read(shard.documents)["text"][row].as_py().split()
    benchmark = make_parquet(tmp_path / "bench.parquet", [make_document(0, text=f"Q: {' '.join(words[2:])} A")])
    for length, is_left_out in ((len(words), True), (12, False)):
        short = make_parquet(
            tmp_path / f"{length}.parquet",
            [make_document(0, text=f"Q: {' '.join(words[2 : 2 + length])} A: yes or no")],
        )
        job = probed.hold_out.model_copy(update={"benchmarks": find_files(str(short), "path"), "force": True})
        hold_out(job)
        assert (row in probed.built.read(job.excluded()[shard.name])["row"].to_pylist()) == is_left_out
    assert benchmark.is_file()


def test_a_phrase_of_many_documents_is_no_sign_of_a_copy(
    probed: Any, pipeline: Any, tmp_path: Any, make_parquet: Any, make_document: Any
) -> None:
    """Every page ends with the same 14 words: without that rule, nothing would be left to select."""
    footer = "all rights reserved please read our terms of use and the privacy policy today"
    rows = [make_document(seed) for seed in range(120)]
    for row in rows:
        row["text"] += f" {footer}"
    make_parquet(tmp_path / "source" / "a.parquet", rows)
    source = probed.built.recipe.source.model_copy(update={"path": str(tmp_path / "source")})
    built = pipeline(
        probed.built.recipe.model_copy(update={"workspace": str(tmp_path / "workspace"), "source": source})
    )
    root, shards = str(built.workspace.root), built.selection_shards
    job = probed.hold_out.model_copy(update={"root": root, "shards": shards, "files": {}, "by": None})
    held_out = hold_out(job)
    assert held_out.details["common_ngrams"] >= 1
    counts = excluded_counts(job.excluded())
    assert counts["shared_words"] < 60  # those whose own last words are alike, too


def test_too_few_documents_are_named(probed: Any, tmp_path: Any, make_parquet: Any, make_document: Any) -> None:
    with pytest.raises(DataError, match="only 240 documents can be selected, and 5% of them"):
        hold_out(probed.hold_out.model_copy(update={"share": 0.05, "force": True}))
    few = make_parquet(tmp_path / "few.parquet", [make_document(seed) for seed in range(19)])
    with pytest.raises(DataError, match="heldout few: it has 19 different documents"):
        hold_out(probed.hold_out.model_copy(update={"files": {"few": find_files(str(few), "path")}, "force": True}))


def test_they_are_drawn_once(probed: Any) -> None:
    assert hold_out(probed.hold_out).cached
    missing = probed.hold_out.workspace.resolve(probed.excluded[probed.hold_out.shards[0].name])
    content = missing.read_bytes()
    missing.unlink()
    assert not hold_out(probed.hold_out).cached
    assert missing.read_bytes() == content
    other = probed.hold_out.model_copy(update={"most": 29})
    assert other.key.fingerprint != probed.hold_out.key.fingerprint


def test_documents_without_a_host_stand_for_themselves(held_out: HeldOut) -> None:
    theirs = held_out.documents.filter(pc.equal(held_out.documents["set"], "theirs"))
    assert len(set(theirs["cluster"].to_pylist())) == len(theirs)
