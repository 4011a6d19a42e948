"""What is said of a document agrees with the files of every stage, row for row."""

import numpy as np
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.standing import edge, margin
from fineweb_mask.tasks.ledger.decisions import DROPPED, NOT_SELECTED, SELECTED, explain, explain_gone
from fineweb_mask.tasks.ledger.lookup import Gone
from fineweb_mask.tasks.reporting.samples import DocumentRef

COLUMNS = {
    "documents": ["content_hash"],
    "scores": ["quality"],
    "embeddings": ["embedding"],
    "masks": ["block", "inclusion", "selected"],
}


@pytest.fixture(scope="module")
def rows(ledger):
    """What the stages' files hold of every document."""
    found = {}
    for index, shard in enumerate(ledger.shards):
        for row in range(shard.rows):
            found[DocumentRef(index, row)] = {"quality": None, "embedding": None}
        for file, columns in COLUMNS.items():
            read = pq.read_table(ledger.workspace.resolve(getattr(shard, file)), columns=["row", *columns])
            for values in read.to_pylist():
                found[DocumentRef(index, values.pop("row"))] |= values
        if shard.duplicates.rows:
            for row in pq.read_table(ledger.workspace.resolve(shard.duplicates))["row"].to_pylist():
                found[DocumentRef(index, row)]["is_repeated"] = True
    return found


@pytest.fixture(scope="module")
def everyone(ledger, rows):
    return {ref: explain(ledger, ref, "asked") for ref in rows}


def stage(one, name):
    return next((step for step in one.decisions if step.stage == name), None)


def test_outcomes_are_those_of_the_masks_and_the_duplicates(rows, everyone):
    for ref, row in rows.items():
        expected = DROPPED if "is_repeated" in row else SELECTED if row["selected"] else NOT_SELECTED
        assert everyone[ref].outcome == expected
    assert {one.outcome for one in everyone.values()} == {DROPPED, SELECTED, NOT_SELECTED}


def test_ranks_gains_and_ratios_are_those_of_the_block(rows, everyone):
    blocks = {row["block"] for row in rows.values()} - {None}
    assert len(blocks) > 1
    for block in blocks:
        members = {ref: row for ref, row in rows.items() if row["block"] == block}
        inclusion, selected = ([row[name] for row in members.values()] for name in ("inclusion", "selected"))
        numbers = [stage(everyone[ref], "select").numbers for ref in members]
        assert sorted(one["rank"] for one in numbers) == list(range(1, len(members) + 1))
        by_rank = [inclusion[place] for place in np.argsort([one["rank"] for one in numbers])]
        assert by_rank == sorted(inclusion, reverse=True)
        threshold = edge(np.array(inclusion), np.array(selected))
        for one, own in zip(numbers, inclusion, strict=True):
            assert one["of"] == len(members)
            assert one["selected_of_them"] == sum(selected)
            if own == 0:  # a near-duplicate of a better document, which no ratio selects
                assert not one.keys() & {"selected_from_ratio", "marginal_gain_above_threshold"}
                continue
            assert one["selected_from_ratio"] == pytest.approx(one["rank"] / len(members), abs=1e-4)
            assert one["marginal_gain_above_threshold"] == pytest.approx(margin(own, threshold), abs=1e-3)


@pytest.fixture(scope="module")
def cosines(rows):
    """Of every document with every other; a document has none with itself."""
    width = max(len(row["embedding"] or []) for row in rows.values())
    vectors = np.array([row["embedding"] or [0] * width for row in rows.values()], dtype=float)
    return vectors @ vectors.T - 3 * np.eye(len(vectors))


def test_a_near_duplicate_of_a_better_document_is_said_to_be_one(rows, everyone, cosines):
    quality, left_out = np.array([row["quality"] for row in rows.values()], dtype=float), 0
    for own, (ref, row) in enumerate(rows.items()):
        said = stage(everyone[ref], "select")
        if said is None or said.numbers["inclusion"] > 0:
            continue
        left_out += 1
        assert everyone[ref].outcome == NOT_SELECTED
        assert "a better document has a cosine of 0.9 or more with it, so that it may not be selected" in said.reason
        assert "would be selected" not in said.reason
        assert (quality[cosines[own] >= 0.9 - 1e-3] >= row["quality"]).any()
    assert left_out > 0


def test_a_duplicate_is_named_with_the_document_that_is_kept(ledger, rows, everyone):
    dropped = [one for one in everyone.values() if one.outcome == DROPPED]
    assert len(dropped) == 2
    places = {shard.name: place for place, shard in enumerate(ledger.shards)}
    for one in dropped:
        numbers = stage(one, "dedup").numbers
        own, kept = DocumentRef(places[one.shard], one.row), (places[numbers["kept_shard"]], numbers["kept_row"])
        assert rows[own]["content_hash"] == rows[DocumentRef(*kept)]["content_hash"]
        assert own != kept
        assert "the same text as https://example.org/" in stage(one, "dedup").reason
        assert stage(one, "select") is None


def test_scores_are_told_with_the_share_of_all_documents_below(rows, everyone):
    quality = np.array([row["quality"] for row in rows.values() if row["quality"] is not None])
    assert len(quality) == len(rows) - 2
    for ref, row in rows.items():
        told = stage(everyone[ref], "score")
        if "is_repeated" in row:
            assert told is None  # a duplicate is not scored
        else:
            assert told.numbers["quality"]["score"] == row["quality"]
            assert told.numbers["quality"]["better_than"] == pytest.approx(np.mean(quality < row["quality"]))


def test_the_nearest_selected_document_is_that_of_all_cosines(ledger, rows, everyone, cosines):
    for own, (ref, row) in enumerate(rows.items()):
        if row["block"] is not None:
            best = max(
                cosines[own][other]
                for other, one in enumerate(rows.values())
                if one["block"] == row["block"] and one["selected"]
            )
            assert stage(everyone[ref], "select").numbers["nearest_selected_cosine"] == pytest.approx(best, abs=2e-3)
    kept = list((ledger.workspace.cache / "ledger").glob("selected-*.npy"))
    assert 0 < len(kept) == len({path.name for path in kept}) <= len(ledger.shards)
    for path in kept:
        path.rename(path.with_name(f"selected-0123456789abcdef-{path.name[-20:]}"))  # of an earlier selection
    assert {ref: explain(ledger, ref, "asked") for ref in rows} == everyone
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
