"""What is said of a document agrees with the files of every stage, row for row."""

import re

import numpy as np
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.ledger.decisions import (
    DROPPED,
    NOT_SELECTED,
    SELECTED,
    Corpus,
    explain,
    notable_documents,
)
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows

COLUMNS = {
    "documents": ["content_hash", "id"],
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
            found[index, row] = {"quality": None, "embedding": None}
        for file, columns in COLUMNS.items():
            read = pq.read_table(ledger.workspace.resolve(getattr(shard, file)), columns=["row", *columns])
            for values in read.to_pylist():
                found[index, values.pop("row")] |= values
        for row in duplicate_rows(ledger.workspace, shard.duplicates).tolist():
            found[index, row]["is_repeated"] = True
    return found


@pytest.fixture(scope="module")
def everyone(ledger, rows):
    """What is told of every document that ingest kept."""
    places = {shard.name: place for place, shard in enumerate(ledger.shards)}
    told = [one for one in explain(ledger, [row["id"] for row in rows.values()]) if one.row is not None]
    assert len(told) == len(rows)
    return {(places[one.shard], one.row): one for one in told}


def stage(one, name):
    return next((step for step in one.decisions if step.stage == name), None)


def test_outcomes_and_scores_are_those_of_the_files_with_the_share_of_the_block_s_documents_below(rows, everyone):
    for ref, row in rows.items():
        expected = DROPPED if "is_repeated" in row else SELECTED if row["selected"] else NOT_SELECTED
        assert everyone[ref].outcome == expected
        assert (stage(everyone[ref], "score") is None) == (expected == DROPPED)  # a duplicate is not scored
        if expected != DROPPED:
            numbers = everyone[ref].numbers
            quality = [one["quality"] for one in rows.values() if one.get("block") == row["block"]]
            assert numbers["quality"] == row["quality"]
            assert numbers["better_than"] == pytest.approx(np.mean(np.array(quality) < row["quality"]))
    assert {one.outcome for one in everyone.values()} == {DROPPED, SELECTED, NOT_SELECTED}


def test_ranks_and_ratios_are_those_of_the_block(rows, everyone):
    blocks = {row["block"] for row in rows.values()} - {None}
    assert len(blocks) > 1
    for block in blocks:
        members = {ref: row for ref, row in rows.items() if row["block"] == block}
        inclusion, selected = ([row[name] for row in members.values()] for name in ("inclusion", "selected"))
        numbers = [everyone[ref].numbers for ref in members]
        assert sorted(one["rank"] for one in numbers) == list(range(1, len(members) + 1))
        by_rank = [inclusion[place] for place in np.argsort([one["rank"] for one in numbers])]
        assert by_rank == sorted(inclusion, reverse=True)
        for one, own in zip(numbers, inclusion, strict=True):
            assert one["of"] == len(members)
            assert one["selected_of_them"] == sum(selected)
            if own == 0:  # a near-duplicate of a better document, which no ratio selects
                assert "selected_from_ratio" not in one
                continue
            assert one["selected_from_ratio"] == pytest.approx(one["rank"] / len(members), abs=1e-4)


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
        if said is None or everyone[ref].numbers["inclusion"] > 0:
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
        numbers = one.numbers
        own, kept = (places[one.shard], one.row), (places[numbers["kept_shard"]], numbers["kept_row"])
        assert rows[own]["content_hash"] == rows[kept]["content_hash"]
        assert own != kept
        assert "the same text as https://example.org/" in stage(one, "dedup").reason
        assert stage(one, "select") is None


def test_the_nearest_selected_document_is_that_of_all_cosines(ledger, rows, everyone, cosines):
    for own, (ref, row) in enumerate(rows.items()):
        if row["block"] is not None:
            best = max(
                cosines[own][other]
                for other, one in enumerate(rows.values())
                if one["block"] == row["block"] and one["selected"]
            )
            assert everyone[ref].numbers["nearest_selected_cosine"] == pytest.approx(best, abs=2e-3)


def test_a_row_that_ingest_dropped_is_told_with_the_setting(ledger):
    dropped = [pq.read_table(path) for path in sorted((ledger.workspace.root / "dropped").rglob("*.parquet"))]
    rows = [row for table in dropped for row in table.to_pylist()]
    told = {one.id: one for one in explain(ledger, [row["id"] for row in rows])}
    for row in rows:
        one = told[row["id"]]
        assert (one.outcome, one.row, one.source_row, one.url) == (DROPPED, None, row["source_row"], row["url"])
        assert len(one.decisions) == 1
    assert {one.decisions[0].reason for one in told.values()} == {
        "too_short: ingest.min_chars is 20",
        "duplicate: an earlier row of its file has the same text",
    }


def test_a_document_is_found_by_its_url_too_and_others_are_not(ledger, everyone):
    one = everyone[0, 3]
    assert explain(ledger, [one.url, "nowhere"]) == [one]
    assert explain(ledger, ["nowhere"]) == []


NOTE = re.compile(
    r"quality [+-]\d\.\d\d; rank \d+ of \d+, \d+ of which fill the budget; of better quality than \d+% of them; "
    r"(is|would be) selected from select_ratio [\d.]+; the "
    r"nearest selected document has a cosine of -?\d\.\d\d with it: https://example.org/\d+ \(.* row \d+\)"
)


def test_the_best_left_out_and_the_worst_kept_are_shown_with_what_decided(ledger, rows, everyone):
    [section] = notable_documents(ledger)
    left_out, kept = section.sides
    assert (left_out.title, kept.title) == ("Best left out", "Worst kept")
    quality: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for ref, row in rows.items():
        if row["quality"] is not None:
            quality[row["selected"]][everyone[ref].url] = row["quality"]
    assert [quality[False][card.title] for card in left_out.cards] == sorted(quality[False].values())[::-1][:5]
    assert [quality[True][card.title] for card in kept.cards] == sorted(quality[True].values())[:5]
    for side, words in ((left_out, "would be"), (kept, "is")):
        for card in side.cards:
            if "so that it may not be selected" in card.note:  # a near-duplicate of a better document
                assert side is left_out
                continue
            found = NOTE.fullmatch(card.note)
            assert found is not None, card.note
            assert found[1] == words


def test_of_equal_ones_none_is_the_best(hostile_dumps):
    """Of a selection of everything there are only kept ones."""
    corpus = Corpus(hostile_dumps.workspace, hostile_dumps.recipe, hostile_dumps.report_job.shards)
    assert [side.title for section in notable_documents(corpus) for side in section.sides] in (["Worst kept"], [])
