"""The best left out and the worst kept: they are these, and each says what decided."""

import re

from fineweb_mask.tasks.ledger.decisions import Corpus
from fineweb_mask.tasks.ledger.notable import notable_documents

REASON = re.compile(
    r"quality [+-]\d\.\d\d; rank \d+ of \d+, \d+ of which fill the budget; of better quality than \d+% of them; "
    r"(is|would be) selected from select_ratio [\d.]+; the "
    r"nearest selected document has a cosine of -?\d\.\d\d with it: https://example.org/\d+ \(.* row \d+\)"
)


def test_they_are_the_best_and_the_worst_and_say_why(built):
    shards = built.report_job.shards
    [section] = notable_documents(Corpus(built.workspace, built.recipe, shards))
    left_out, kept = section.sides
    assert (left_out.title, kept.title) == ("Best left out", "Worst kept")
    quality: dict[bool, dict[str, float]] = {True: {}, False: {}}
    for shard in shards:
        for row in built.joined(shard.documents, shard.scores, shard.masks):
            quality[row["selected"]][row["url"]] = row["quality"]
    best = sorted(quality[False].values(), reverse=True)[:5]
    worst = sorted(quality[True].values())[:5]
    assert [quality[False][card.title] for card in left_out.cards] == best
    assert [quality[True][card.title] for card in kept.cards] == worst
    for side, words in ((left_out, "would be"), (kept, "is")):
        for card in side.cards:
            if "so that it may not be selected" in card.note:  # a near-duplicate of a better document
                assert side is left_out
                continue
            found = REASON.fullmatch(card.note)
            assert found is not None, card.note
            assert found[1] == words


def test_of_equal_ones_none_is_the_best(hostile_dumps):
    """Of a selection of everything there are only kept ones."""
    corpus = Corpus(hostile_dumps.workspace, hostile_dumps.recipe, hostile_dumps.report_job.shards)
    assert [side.title for section in notable_documents(corpus) for side in section.sides] in (["Worst kept"], [])
