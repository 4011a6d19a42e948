"""A group that is wiped out is told in one sentence."""

from fineweb_mask.models.losses import Wiped


def test_the_sentence_names_group_step_share_and_the_largest_reasons():
    reasons = {"regex: a": 1, "too_short": 5, "known": 7, "duplicate": 980}
    assert str(Wiped("source", "it's", "ingest", 1_000, 7, reasons)) == (
        'ingest keeps 7 of 1,000 documents (0.7%) of source "it\'s": 980 exact duplicates, 7 known, 5 too short'
    )
    wiped = Wiped("source", "mirror", "same_url", 90, 1, {"same_url": 89})
    assert str(wiped) == "deduplication keeps 1 of 90 documents (1.1%) of source 'mirror': 89 pages of an equal URL"
