import random
from itertools import combinations
from statistics import mean

import pytest

from fineweb_mask.models.audit.planting import Template, edited, prose
from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.filters import load_filters
from fineweb_mask.models.settings.source import FilterSettings
from tests.corpora import EDITS, KINDS, copied, jaccard, mixed, of_kind, templates


@pytest.mark.parametrize(("share", "similarity"), [*zip(EDITS, (0.86, 0.63, 0.20), strict=True)])
def test_copies_have_as_many_other_words_as_asked(share, similarity):
    corpus = copied(40, share)
    assert len(corpus.copies) == 40
    both = [(corpus.texts[one], corpus.texts[other]) for one, other in corpus.copies]
    for one, other in both:
        old, new = one.split(), other.split()
        assert len(old) == len(new)
        assert sum(a != b for a, b in zip(old, new, strict=True)) == round(share * len(old))
        assert one.count("\n\n") == other.count("\n\n")
    assert mean(jaccard(*pair) for pair in both) == pytest.approx(similarity, abs=0.03)


def test_pages_of_a_template_share_most_words_and_are_no_copies():
    corpus = templates(40)
    assert not corpus.pairs
    found = [jaccard(*pair) for pair in combinations(corpus.texts, 2)]
    assert mean(found) == pytest.approx(0.5625, abs=0.015)
    assert max(found) < 0.6


def test_an_edit_changes_one_word_at_least_and_needs_one():
    assert edited("only", 0.01, random.Random(0)) != "only"
    with pytest.raises(DataError, match="must have a word, received none"):
        edited(" \n ", 0.5, random.Random(0))


def test_no_usual_filter_drops_prose_and_no_two_pages_are_alike():
    kinds = ("gopher_quality", "gopher_repetition", "c4_quality", "fineweb_quality")
    passes = load_filters([FilterSettings(kind=kind) for kind in kinds])
    texts = of_kind(prose, "prose", 60).texts
    assert {passes(text, None).dropped for text in texts} == {None}
    assert max(jaccard(*pair) for pair in combinations(texts, 2)) < 0.1


@pytest.mark.parametrize("family", KINDS)
def test_texts_of_a_kind_differ(family):
    texts = of_kind(KINDS[family], family, 50).texts
    assert len({content_hash(text) for text in texts}) == 50
    assert max(jaccard(*pair) for pair in combinations(texts, 2)) < 0.7


def test_a_mixed_corpus_knows_the_copies_of_every_family_and_is_the_same_for_its_seed():
    corpus = mixed(each=30, copies=5)
    assert corpus == mixed(each=30, copies=5)
    assert corpus != mixed(each=30, copies=5, seed=9)
    assert set(corpus.families) == {*KINDS, "template"}
    assert all(len(corpus.of(family)) == 45 for family in set(corpus.families))
    for (one, other), share in corpus.copies.items():
        assert corpus.families[one] == corpus.families[other]
        assert jaccard(corpus.texts[one], corpus.texts[other]) > {0.015: 0.7, 0.05: 0.35, 0.2: 0.02}[share]
    assert corpus.pairs == {(min(pair), max(pair)) for pair in corpus.copies}  # none was copied twice


def test_templates_of_another_seed_share_nothing():
    one, other = (Template(random.Random(seed)).page(random.Random(seed + 2)) for seed in (0, 1))
    assert jaccard(one, other) < 0.05
