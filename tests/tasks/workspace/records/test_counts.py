"""The books balance to the row."""

import pytest

from fineweb_mask.tasks.workspace.records.counts import account, mean_terms
from fineweb_mask.tasks.workspace.references import StageFile


def reference(rows, **details):
    return StageFile(stage="s", name="n", path="p", rows=rows, bytes=1, fingerprint="f", details=details)


def block(documents, selected, objective, **terms):
    tokens = {"tokens": 10 * documents, "tokens_selected": 10 * selected}
    return {"documents": documents, "selected": selected, "objective": objective, "terms": terms} | tokens


def test_shards_and_blocks_are_added_up():
    ingested = [
        reference(7, rows_in=10, dropped={"too_short": 2, "duplicate": 1}, tokens_in=90, tokens=70, tokens_estimated=1),
        reference(4, rows_in=5, dropped={"too_short": 1}, tokens_in=60, tokens=40, tokens_estimated=0),
    ]
    masks = [reference(11, excluded={"duplicate": 2, "bad_vector": 0}, blocks=[block(5, 2, 0.5), block(4, 1, 0.5)])]
    counts = account(ingested, masks)
    assert counts.dropped == {"duplicate": 3, "too_short": 3}
    assert (counts.documents_in, counts.documents_ingested, counts.documents_eligible) == (15, 11, 9)
    assert (counts.selected, counts.not_selected) == (3, 6)
    tokens = (counts.tokens_in, counts.tokens_ingested, counts.tokens_eligible, counts.tokens_selected)
    assert tokens == (150, 110, 90, 30)
    assert counts.tokens_estimated == 1


def test_every_document_of_the_corpus_is_accounted_for(built):
    counts = built.counts
    assert counts.documents_in == 66 == counts.selected + counts.not_selected + sum(counts.dropped.values())
    assert counts.dropped == {"duplicate": 3, "too_short": 1}
    tables = [built.read(file) for file in built.masks]
    assert counts.selected == sum(sum(table["selected"].to_pylist()) for table in tables)
    assert counts.documents_eligible == sum(table["block"].is_valid().to_pylist().count(True) for table in tables)
    tokens = [value for file in built.documents for value in built.read(file)["token_count"].to_pylist()]
    assert counts.tokens_ingested == sum(tokens)
    assert counts.tokens_selected < counts.tokens_eligible < counts.tokens_ingested < counts.tokens_in
    assert counts.tokens_estimated == 0


def test_terms_are_averaged_by_documents():
    masks = [
        reference(1, blocks=[block(30, 3, 1.0, quality=2.0, pairwise=0.0)]),
        reference(1, blocks=[block(10, 1, 0.0, quality=0.0, pairwise=1.0)]),
    ]
    objective, terms = mean_terms(masks)
    assert objective == pytest.approx(0.75)
    assert terms == pytest.approx({"quality": 1.5, "pairwise": 0.25})
    assert mean_terms([reference(1, blocks=[])]) == (None, {})
