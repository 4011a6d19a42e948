"""Corpora of which it is known what is a copy: the copies are as alike as they are said to be."""

from itertools import combinations
from statistics import mean

import pytest

from fineweb_mask.models.filters import load_filters
from fineweb_mask.models.settings.source import FilterSettings
from tests.corpora import EDITS, KINDS, copied, jaccard, mixed, of_kind, prose, templates


@pytest.mark.parametrize(("share", "similarity"), [*zip(EDITS, (0.86, 0.63, 0.20), strict=True)])
def test_copies_have_as_many_other_words_as_asked(share, similarity):
    corpus = copied(40, share)
    both = [(corpus.texts[one], corpus.texts[other]) for one, other in corpus.copies]
    for one, other in both:
        changed = [old != new for old, new in zip(one.split(), other.split(), strict=True)]
        assert sum(changed) == round(share * len(changed))
    assert mean(jaccard(*pair) for pair in both) == pytest.approx(similarity, abs=0.03)


def test_pages_of_a_template_share_most_words_and_are_no_copies():
    corpus = templates(40)
    assert not corpus.pairs
    found = [jaccard(*pair) for pair in combinations(corpus.texts, 2)]
    assert mean(found) == pytest.approx(0.5625, abs=0.015)
    assert max(found) < 0.6


@pytest.mark.parametrize("family", KINDS)
def test_texts_of_a_kind_differ(family):
    assert max(jaccard(*pair) for pair in combinations(of_kind(KINDS[family], family, 50).texts, 2)) < 0.7


def test_no_usual_filter_drops_prose():
    kinds = ("gopher_quality", "gopher_repetition", "c4_quality", "fineweb_quality")
    passes = load_filters([FilterSettings(kind=kind) for kind in kinds])
    assert {passes(text, None).dropped for text in of_kind(prose, "prose", 60).texts} == {None}


def test_a_mixed_corpus_has_copies_of_every_family_and_is_the_same_for_its_seed():
    corpus = mixed(each=30, copies=5)
    assert corpus == mixed(each=30, copies=5) != mixed(each=30, copies=5, seed=9)
    assert {name: len(corpus.of(name)) for name in corpus.families} == dict.fromkeys([*KINDS, "template"], 45)
    assert all(corpus.families[one] == corpus.families[other] for one, other in corpus.copies)
