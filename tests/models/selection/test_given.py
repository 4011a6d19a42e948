"""A selection that goes with an earlier one: the best of both together, bounded, and none of it again."""

import itertools

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection import (
    Given,
    SelectionInputError,
    SelectionSettings,
    SelectorInputs,
    select,
)
from fineweb_mask.models.selection.block import checked_block


def both_of(features, quality, given):
    return np.concatenate([features, given.vectors]), np.concatenate([quality, given.quality])


@pytest.mark.parametrize("metric", ["pairwise", "facility", "disf"])
def test_given_an_earlier_selection_the_best_of_both_together_is_found_and_bounded(metric):
    random = np.random.default_rng(5)
    features, quality = random.normal(size=(11, 3)) + 0.3, random.random(11)
    given = Given(random.normal(size=(4, 3)) + 0.3, random.random(4))
    chosen = SelectionSettings(metrics=metric, budget=3, normalize="none", near_duplicates={"weight": 0.5})
    found = select(features, quality, chosen, also=SelectorInputs(given=given))
    vectors, scores = both_of(features, quality, given)
    whole = checked_block(vectors, scores, chosen.model_copy(update={"budget": 7}), device="cpu")
    objective = whole.scaled(0.5).objective

    def value(documents):
        mask = torch.zeros(15, dtype=torch.bool)
        mask[[*documents, 11, 12, 13, 14]] = True
        return objective.value_of(mask)

    best = max(value(documents) for documents in itertools.combinations(range(11), 3))
    assert len(found.indices) == 3
    assert found.objective == pytest.approx(value(found.indices.tolist()), abs=1e-5)
    assert found.objective >= best - 1e-3 * (best - found.random_objective)
    assert found.upper_bound >= best - 1e-5


def test_what_an_earlier_selection_holds_is_not_selected_again(corpus):
    """The first sixty documents are near-copies of the next sixty: given those, none of the first is worth taking."""
    features, quality = corpus
    settings = SelectionSettings(budget=40, lamb=0.3, near_duplicates={"threshold": 0.9})
    alone = select(features[:400], quality[:400], settings)
    given = Given(features[60:120], quality[60:120])
    among = np.r_[0:60, 120:400]
    found = select(features[among], quality[among], settings, also=SelectorInputs(given=given))

    def like(documents):
        cosines = features[documents] @ features[60:120].T
        return float((cosines.max(1) > 0.95).mean())

    taken = among[found.indices]
    assert len(taken) == 40
    assert like(taken) == 0
    plain = among[select(features[among], quality[among], settings).indices]
    assert like(plain) > 0
    assert alone.objective <= alone.upper_bound
    assert found.random_objective < found.objective <= found.upper_bound
    assert found.gap < 0.05


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver": "random"}, "given: an earlier selection needs solver: mean_field"),
        ({"near_duplicates": {"forbid": True}}, "and no near_duplicates.forbid"),
    ],
)
def test_settings_that_know_no_earlier_selection_are_refused(settings, message, corpus):
    features, quality = corpus
    also = SelectorInputs(given=Given(features[:3], quality[:3]))
    with pytest.raises(SelectionInputError, match=message):
        select(features, quality, settings, also=also)
    with pytest.raises(SelectionInputError, match="must have 16 dimensions, as those of the documents, received 5"):
        select(features, quality, also=SelectorInputs(given=Given(np.ones((2, 5)), np.ones(2))))


def test_earlier_documents_that_are_all_alike_are_held_and_own_metrics_are_refused_with_them():
    features, quality = np.ones((6, 3)), np.ones(6)
    also = SelectorInputs(given=Given(np.ones((2, 3)), np.ones(2)))
    assert len(select(features, quality, {"budget": 2}, also=also).indices) == 2

    class Nothing:
        def value(self, masks):
            return torch.zeros(len(masks))

        def gradient(self, inclusion):
            return torch.zeros_like(inclusion)

    with pytest.raises(SelectionInputError, match="given: own_metrics know nothing of earlier documents: leave"):
        select(features, quality, {"budget": 2}, also=also, own_metrics={"nothing": (Nothing(), 1.0)})
