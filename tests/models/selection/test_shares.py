"""Shares of groups: together they are the budget, and what one cannot fill goes to the others."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.selection.shares import group_shares, whole

SIZES = st.lists(st.tuples(st.integers(1, 1000), st.floats(0.01, 1)), min_size=1, max_size=6)


@given(SIZES, st.floats(0.01, 1))
def test_all_groups_together_are_the_budget_and_none_gives_more_than_it_has(groups, ratio):
    sizes = {str(name): size for name, (size, _) in enumerate(groups)}
    total = sum(weight for _, weight in groups)
    for shares in ("equal", {str(name): weight / total for name, (_, weight) in enumerate(groups)}):
        found = group_shares(shares, ratio, sizes)
        budget = ratio * sum(sizes.values())
        assert sum(share.given * sizes[name] for name, share in found.items()) == pytest.approx(budget)
        assert sum(share.asked * sizes[name] for name, share in found.items()) == pytest.approx(budget)
        assert all(0 < share.given <= 1 + 1e-9 for share in found.values())
        open_ = [share.given / share.asked for share in found.values() if share.given < 1 - 1e-9]
        assert max(open_, default=1) == pytest.approx(min(open_, default=1))  # the others share the rest alike
        assert min(open_, default=1) >= 1 - 1e-9


def test_groups_without_a_share_give_nothing_even_if_the_others_cannot_fill_the_budget():
    found = group_shares({"a": 1.0}, 0.5, {"a": 10, "b": 90, "c": 0})
    assert found == {"a": (5.0, 1.0), "b": (0.0, 0.0)}


def test_a_share_of_a_group_without_documents_is_refused_by_name():
    with pytest.raises(SettingsError, match=r"no document is in 'x'; the groups are 'a': correct the names"):
        group_shares({"x": 0.5, "a": 0.5}, 0.1, {"a": 5, "x": 0})


@given(st.lists(st.floats(0, 20), min_size=1, max_size=8))
def test_rounded_numbers_add_up_and_none_is_farther_than_one_and_equal_ones_come_in_order(numbers):
    wanted = np.array(numbers)
    found = whole(wanted, round(wanted.sum()))
    assert found.sum() == round(wanted.sum())
    assert np.abs(found - wanted).max() <= 1 + 1e-6
    assert whole(np.full(4, 0.5), 2).tolist() == [1, 1, 0, 0]
