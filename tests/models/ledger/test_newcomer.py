"""The marginal gain of a newcomer is the one that the selection itself reports of a document that it left out."""

import numpy as np
import pytest

from fineweb_mask.models.ledger.newcomer import newcomer
from fineweb_mask.models.ledger.standing import margin
from fineweb_mask.models.selection import select
from fineweb_mask.models.settings.selection import SelectionSettings

pytestmark = pytest.mark.usefixtures("one_thread")
N = 240


def drawn():
    dice = np.random.default_rng(2)
    centres = dice.normal(size=(12, 16))
    vectors = centres[dice.integers(0, 12, N)] + 0.6 * dice.normal(size=(N, 16))
    return vectors.astype(np.float32), dice.normal(size=N).astype(np.float32), dice.integers(20, 400, N)


@pytest.mark.parametrize(
    "changes",
    [
        {"metrics": {"facility": 1, "disf": 1}},
        {"metrics": "facility"},
        {"metrics": "pairwise", "near_duplicates": {"weight": 0.0}},
        {"metrics": {"facility": 1, "disf": 1}, "budget_by": "tokens"},
    ],
)
def test_what_is_told_of_a_newcomer_is_what_the_selection_says_of_it(changes):
    vectors, quality, tokens = drawn()
    settings = SelectionSettings(select_ratio=0.25, **changes)
    by_tokens = tokens if settings.budget_by == "tokens" else None
    found = select(vectors, quality, settings, tokens=by_tokens)
    left_out = np.setdiff1d(np.arange(N), found.indices)
    selected = np.zeros(N, dtype=bool)
    selected[found.indices] = True
    for place in left_out[:: len(left_out) // 8]:
        order = np.append(np.delete(np.arange(N), place), place)
        own = newcomer(
            vectors[order],
            quality[order],
            settings,
            selected[order][:-1],
            found.inclusion[order][:-1],
            None if by_tokens is None else tokens[order],
        )
        assert own is not None
        assert own.fit > 0.99
        if 1e-6 < found.inclusion[place] < 1 - 1e-6:
            assert own.margin == pytest.approx(margin(float(found.inclusion[place])), abs=0.08)


def test_a_copy_of_a_selected_document_gains_least():
    vectors, quality, _ = drawn()
    settings = SelectionSettings(select_ratio=0.25, metrics="facility")
    found = select(vectors, quality, settings)
    selected = np.zeros(N, dtype=bool)
    selected[found.indices] = True
    left_out = np.flatnonzero(~selected)
    margins = []
    for place in (found.indices[0], *left_out[:: len(left_out) // 8]):  # all of one quality
        added = np.vstack([vectors, vectors[place][None]]), np.append(quality, np.float32(0.5))
        own = newcomer(*added, settings, selected, found.inclusion)
        assert own is not None
        margins.append(own.margin)
    assert margins[0] == min(margins) < margins[1]


def test_too_few_known_gains_tell_nothing():
    vectors, quality, _ = drawn()
    nothing = np.zeros(N - 1)
    assert newcomer(vectors, quality, SelectionSettings(), nothing > 0, nothing) is None
