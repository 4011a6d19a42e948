"""What is said of a document agrees with the files of every stage, row for row."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.standing import edge, margin
from fineweb_mask.tasks.ledger.decisions import DROPPED, NOT_SELECTED, SELECTED, explain, explain_gone
from fineweb_mask.tasks.ledger.lookup import Gone
from fineweb_mask.tasks.reporting.samples import DocumentRef


def read(ledger, file, column):
    return pq.read_table(ledger.workspace.resolve(file))[column].to_pylist()


def explained(ledger):
    refs = [DocumentRef(index, row) for index, shard in enumerate(ledger.shards) for row in range(shard.rows)]
    return {ref: explain(ledger, ref, "asked") for ref in refs}


@pytest.fixture(scope="module")
def everyone(ledger):
    return explained(ledger)


def stage(one, name):
    return next((step for step in one.decisions if step.stage == name), None)


def test_outcomes_are_those_of_the_masks_and_the_duplicates(ledger, everyone):
    for index, shard in enumerate(ledger.shards):
        selected = read(ledger, shard.masks, "selected")
        repeated = set(read(ledger, shard.duplicates, "row")) if shard.duplicates.rows else set()
        for row in range(shard.rows):
            expected = DROPPED if row in repeated else SELECTED if selected[row] else NOT_SELECTED
            assert everyone[DocumentRef(index, row)].outcome == expected
    assert {one.outcome for one in everyone.values()} == {DROPPED, SELECTED, NOT_SELECTED}


def test_ranks_gains_and_ratios_are_those_of_the_block(ledger, everyone):
    blocks = {}
    for index, shard in enumerate(ledger.shards):
        columns = (read(ledger, shard.masks, name) for name in ("block", "inclusion", "selected"))
        for row, (block, inclusion, selected) in enumerate(zip(*columns, strict=True)):
            if block is not None:
                blocks.setdefault(block, []).append((DocumentRef(index, row), inclusion, selected))
    assert len(blocks) > 1
    for members in blocks.values():
        refs, inclusion, selected = (list(column) for column in zip(*members, strict=True))
        numbers = [stage(everyone[ref], "select").numbers for ref in refs]
        assert sorted(one["rank"] for one in numbers) == list(range(1, len(refs) + 1))
        by_rank = [inclusion[place] for place in np.argsort([one["rank"] for one in numbers])]
        assert by_rank == sorted(inclusion, reverse=True)
        threshold = edge(np.array(inclusion), np.array(selected))
        for one, own in zip(numbers, inclusion, strict=True):
            assert one["of"] == len(refs)
            assert one["selected_of_them"] == sum(selected)
            if own == 0:  # a near-duplicate of a better document, which no ratio selects
                assert not one.keys() & {"selected_from_ratio", "marginal_gain_above_threshold"}
                continue
            assert one["selected_from_ratio"] == pytest.approx(one["rank"] / len(refs), abs=1e-4)
            assert one["marginal_gain_above_threshold"] == pytest.approx(margin(own, threshold), abs=1e-3)


def test_a_near_duplicate_of_a_better_document_is_said_to_be_one(ledger, everyone):
    vectors, quality = [], []
    for shard in ledger.shards:
        vectors += read(ledger, shard.embeddings, "embedding")
        quality += read(ledger, shard.scores, "quality")
    starts = np.cumsum([0, *(shard.rows for shard in ledger.shards)])
    units = np.array([np.zeros(len(vectors[0])) if one is None else one for one in vectors], dtype=float)
    units /= np.linalg.norm(units, axis=1, keepdims=True).clip(min=1e-9)
    left_out = 0
    for ref, one in everyone.items():
        said, own = stage(one, "select"), starts[ref.shard] + ref.row
        if said is None or said.numbers["inclusion"] > 0:
            continue
        left_out += 1
        assert one.outcome == NOT_SELECTED
        assert "a better document has a cosine of 0.9 or more with it, so that it may not be selected" in said.reason
        assert "would be selected" not in said.reason
        alike = (units @ units[own] >= 0.9 - 1e-3) & (np.arange(len(units)) != own)
        assert (np.array(quality, dtype=float)[alike] >= quality[own]).any()
    assert left_out > 0


def test_a_duplicate_is_named_with_the_document_that_is_kept(ledger, everyone):
    dropped = [one for one in everyone.values() if one.outcome == DROPPED]
    assert len(dropped) == 2
    names = {shard.name: shard for shard in ledger.shards}
    for one in dropped:
        numbers = stage(one, "dedup").numbers
        kept = names[numbers["kept_shard"]]
        hashes = [read(ledger, shard.documents, "content_hash") for shard in (names[one.shard], kept)]
        assert hashes[0][one.row] == hashes[1][numbers["kept_row"]]
        assert (numbers["kept_shard"], numbers["kept_row"]) != (one.shard, one.row)
        assert "the same text as https://example.org/" in stage(one, "dedup").reason
        assert stage(one, "select") is None


def test_scores_are_told_with_the_share_of_all_documents_below(ledger, everyone):
    quality = np.concatenate([read(ledger, shard.scores, "quality") for shard in ledger.shards])
    for ref, one in everyone.items():
        own = read(ledger, ledger.shards[ref.shard].scores, "quality")[ref.row]
        told = stage(one, "score").numbers["quality"]
        assert told["score"] == own
        assert told["better_than"] == pytest.approx(np.mean(quality < own))


def test_the_nearest_selected_document_is_that_of_all_cosines(ledger, everyone):
    for ref, one in everyone.items():
        if one.outcome == DROPPED:
            continue
        numbers, shard = stage(one, "select").numbers, ledger.shards[ref.shard]
        block = read(ledger, shard.masks, "block")[ref.row]
        own, best = np.array(read(ledger, shard.embeddings, "embedding")[ref.row], dtype=float), (-2.0, None)
        for index, other in enumerate(ledger.shards):
            blocks, selected = read(ledger, other.masks, "block"), read(ledger, other.masks, "selected")
            for row, vector in enumerate(read(ledger, other.embeddings, "embedding")):
                if blocks[row] == block and selected[row] and (index, row) != tuple(ref):
                    best = max(best, (float(own @ np.array(vector, dtype=float)), (other.name, row)))
        assert numbers["nearest_selected_cosine"] == pytest.approx(best[0], abs=2e-3)
    kept = list((ledger.workspace.cache / "ledger").glob("selected-*.npy"))
    assert 0 < len(kept) == len({path.name for path in kept}) <= len(ledger.shards)
    for path in kept:
        path.rename(path.with_name(f"selected-0123456789abcdef-{path.name[-20:]}"))  # of an earlier selection
    again = explained(ledger)
    assert again == everyone
    assert sorted((ledger.workspace.cache / "ledger").glob("selected-*.npy")) == sorted(kept)


@pytest.mark.parametrize(
    ("reason", "text", "twin", "said"),
    [
        ("too_short", "abc", None, "too_short: 3 characters, ingest.min_chars is 20"),
        ("null_text", None, None, "null_text"),
        ("benchmark", "abc", "row 3 of x", "benchmark: it holds row 3 of x of ingest.decontaminate"),
        ("low_language_score", "abc", None, "low_language_score: ingest.min_language_score is 0.0"),
    ],
)
def test_a_row_that_was_written_aside_is_told_as_dropped_by_the_setting(ledger, reason, text, twin, said):
    one = explain_gone(ledger, Gone(0, 8, "<8>", None, reason, twin, text), "<8>")
    assert (one.outcome, one.row, one.source_row, one.text) == (DROPPED, None, 8, text or "")
    [decision] = one.decisions
    assert (decision.reason, decision.numbers) == (said, {"reason": reason})
