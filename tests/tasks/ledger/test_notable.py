"""The best left out and the worst kept: they are these, and each says what decided."""

import re

import numpy as np

from fineweb_mask.models.settings import ReportSettings
from fineweb_mask.tasks.ledger.decisions import Corpus, take
from fineweb_mask.tasks.ledger.notable import cards, notable
from fineweb_mask.tasks.reporting.geometry import measure
from fineweb_mask.tasks.reporting.samples import DocumentRef

REASON = re.compile(
    r"quality [+-]\d\.\d\d, (better|worse) than \d\d?%; rank \d+ of \d+, \d+ of which fill the budget; its marginal "
    r"gain is \d\.\d\d deviations (above|below) the threshold; (is|would be) selected from select_ratio [\d.]+; the "
    r"nearest selected document has a cosine of -?\d\.\d\d with it: https://example.org/\d+ \(.* row \d+\)"
)


def test_they_are_the_best_and_the_worst_and_say_why(built):
    shards = built.report_job.shards
    measured = measure(built.workspace, shards, ReportSettings())
    assert measured is not None
    [section] = notable(Corpus(built.workspace, built.recipe, shards), measured)
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
    for side, words in ((left_out, ("below", "would be")), (kept, ("above", "is"))):
        for card in side.cards:
            if "so that it may not be selected" in card.note:  # a near-duplicate of a better document
                assert side is left_out
                continue
            found = REASON.fullmatch(card.note)
            assert found is not None, card.note
            assert found.groups()[1:] == words

    alike = measured._replace(quality=measured.quality * 0)
    assert notable(Corpus(built.workspace, built.recipe, shards), alike) == []  # of one quality none is best


def test_of_equal_ones_none_is_better_or_worse(built):
    shards, ref = built.report_job.shards, DocumentRef(0, 0)
    [own] = take(built.workspace, shards[0].scores, 0, ["quality"])
    for places, said in (([-1, 0, 0, 0], "better than 25%"), ([0, 0, 0, 1], "worse than 25%")):
        [card] = cards(Corpus(built.workspace, built.recipe, shards), [ref], np.array(places) + own["quality"])
        assert f", {said}; " in card.note
