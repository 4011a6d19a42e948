"""Corpora of which it is known what is a copy: the copies are as alike as they are said to be."""

from itertools import combinations
from statistics import mean

import pytest

from tests.corpora import EDITS, KINDS, copied, jaccard, mixed, of_kind, templates


@pytest.mark.parametrize(("share", "similarity"), [*zip(EDITS, (0.86, 0.63, 0.20), strict=True)])
def test_copies_have_as_many_other_words_as_asked(share, similarity):
    corpus = copied(20, share)
    both = [(corpus.texts[one], corpus.texts[other]) for one, other in corpus.copies]
    for one, other in both:
        changed = [old != new for old, new in zip(one.split(), other.split(), strict=True)]
        assert sum(changed) == round(share * len(changed))
    assert mean(jaccard(*pair) for pair in both) == pytest.approx(similarity, abs=0.04)


def test_pages_of_a_template_share_most_words_and_are_no_copies():
    corpus = templates(15)
    assert not corpus.pairs
    found = [jaccard(*pair) for pair in combinations(corpus.texts, 2)]
    assert mean(found) == pytest.approx(0.5625, abs=0.015)
    assert max(found) < 0.6


def test_texts_of_a_kind_differ():
    for family, make in KINDS.items():
        assert max(jaccard(*pair) for pair in combinations(of_kind(make, family, 15).texts, 2)) < 0.7, family


def test_a_mixed_corpus_has_copies_of_every_family_and_is_the_same_for_its_seed():
    corpus = mixed(each=6, copies=2)
    assert corpus == mixed(each=6, copies=2) != mixed(each=6, copies=2, seed=9)
    assert {name: len(corpus.of(name)) for name in corpus.families} == dict.fromkeys([*KINDS, "template"], 12)
    assert all(corpus.families[one] == corpus.families[other] for one, other in corpus.copies)
