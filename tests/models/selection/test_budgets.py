"""One price for all blocks: the total is exact, a richer block gives more, equal blocks give the same."""

from dataclasses import asdict

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from fineweb_mask.models.selection import select
from fineweb_mask.models.selection.budgets import Curve, Offer, common_scales, curve, divide, scales_at
from fineweb_mask.models.settings.selection import SelectionSettings

RATIO = 0.2
MIX = {"pairwise": 1, "facility": 1}


def block(seed, n, quality=0.0, spread=1.0, d=8):
    """Unit vectors around a direction, the nearer the smaller the spread, and qualities of a mean."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=d) / np.sqrt(d) + spread * random.normal(size=(n, d))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), random.normal(quality, 1, n).astype(np.float32), random.integers(5, 60, n)


def offers_of(blocks, settings):
    return [Offer.of(vectors, quality, settings, tokens=tokens) for vectors, quality, tokens in blocks]


def budgets_of(offers, settings):
    scales = common_scales(offers)
    total = round(settings.select_ratio * sum(offer.available for offer in offers))
    return divide([curve(offer, scales, settings) for offer in offers], total).budgets, total


def settings_of(**changes):
    return SelectionSettings(**{"select_ratio": RATIO} | changes)


curves = st.builds(
    lambda n, level, fall: Curve(RATIO * n, max(1, n // 20), max(1, round(0.8 * n)), level, fall),
    st.integers(1, 5000),
    st.floats(-3, 3),
    st.sampled_from([0.0, 0.01, 0.3, 2.0]),
)


@hypothesis.given(found=st.lists(curves, min_size=1, max_size=12), ratio=st.floats(0, 1))
def test_the_total_is_exact_and_no_block_leaves_its_ends(found, ratio):
    least, most = sum(one.least for one in found), sum(one.most for one in found)
    total = least + round(ratio * (most - least))
    budgets = divide(found, total).budgets
    assert sum(budgets) == total
    assert all(one.least <= budget <= one.most for one, budget in zip(found, budgets, strict=True))


@pytest.mark.parametrize(("total", "expected"), [(0, 4), (100, 40)])
def test_a_total_that_the_ends_forbid_is_the_nearest_that_they_allow(total, expected):
    assert sum(divide([Curve(5, 2, 20, 1.0, 0.1), Curve(5, 2, 20)], total).budgets) == expected


def test_the_last_document_adds_the_same_in_every_block():
    found = [Curve(1000, 250, 4000, level, fall) for level, fall in ((1.0, 0.1), (1.1, 0.1), (2.0, 0.25))]
    price, budgets = divide(found, 3000)
    prices = [one.price(budget) for one, budget in zip(found, budgets, strict=True)]
    assert prices == pytest.approx([price] * 3, abs=1e-3)
    assert budgets[1] > budgets[0]


def test_the_order_of_blocks_does_not_matter_and_equal_blocks_give_the_same():
    found = [Curve(100, 25, 400, level, 0.2) for level in (1.0, 1.3, 1.0, 1.3)]
    budgets = divide(found, 400).budgets
    assert budgets[0] == budgets[2] < budgets[1] == budgets[3]
    assert divide(found[::-1], 400).budgets == budgets[::-1]


def test_a_curve_goes_through_its_values():
    budgets = [10, 40, 160]
    made = Curve(40, 10, 160, 2.0, 0.3)
    values = [(made.level + made.fall) * k - made.fall * k * np.log(k) + 7 for k in budgets]
    assert Curve.through(budgets, values, 40) == Curve(40, 10, 160, pytest.approx(2.0), pytest.approx(0.3))


@pytest.mark.parametrize(("budgets", "values"), [([1, 4], [1, 2]), ([1, 4, 16], [0, 1, 100])])
def test_a_block_whose_price_does_not_fall_gives_its_usual_share(budgets, values):
    assert Curve.through(budgets, values, 3.7).demand(1.0) == Curve.through(budgets, values, 3.7).demand(-9.0) == 3.7


@pytest.mark.parametrize("by", ["documents", "tokens"])
@pytest.mark.parametrize("metrics", ["pairwise", MIX], ids=str)
def test_a_block_of_better_or_more_diverse_documents_gives_more(by, metrics):
    settings = settings_of(metrics=metrics, budget_by=by)
    usual, better, alike = block(0, 300), block(0, 300, quality=0.8), block(0, 300, spread=0.2)
    (low, high), total = budgets_of(offers_of([usual, better], settings), settings)
    assert low + high == total
    assert high > 1.1 * low
    (wide, narrow), total = budgets_of(offers_of([usual, alike], settings), settings)
    assert wide + narrow == total
    assert wide > 1.1 * narrow


def test_equal_blocks_give_equal_budgets():
    settings = settings_of(metrics=MIX)
    assert budgets_of(offers_of([block(1, 200)] * 3, settings), settings) == ([40, 40, 40], 120)


@pytest.mark.parametrize("by", ["documents", "tokens"])
@pytest.mark.parametrize("normalize", ["range", "none"])
def test_one_block_is_selected_from_as_without_a_price(by, normalize):
    settings = settings_of(metrics=MIX, budget_by=by, normalize=normalize)
    vectors, quality, tokens = block(2, 150)
    [offer] = offers_of([(vectors, quality, tokens)], settings)
    [budget], total = budgets_of([offer], settings)
    assert budget == total
    scales = scales_at(common_scales([offer]), RATIO * offer.available / budget)
    found = select(vectors, quality, settings.model_copy(update={"budget": budget}), scales=scales, tokens=tokens)
    fixed = select(vectors, quality, settings, tokens=tokens)
    np.testing.assert_array_equal(found.indices, fixed.indices)
    assert found.objective == pytest.approx(fixed.objective, rel=1e-3)  # the budget is rounded
    assert found.random_objective == pytest.approx(fixed.random_objective, abs=1e-3)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("by", ["documents", "tokens"])
def test_small_blocks_give_something(n, by):
    settings = settings_of(budget_by=by)
    offers = offers_of([block(seed, n) for seed in range(4)], settings)
    budgets, _ = budgets_of(offers, settings)
    assert all(1 <= budget <= offer.available for budget, offer in zip(budgets, offers, strict=True))
    assert [Offer.of_details(asdict(offer)) for offer in offers] == offers


def test_price_selects_more_of_the_whole_than_fixed_shares():
    settings = settings_of(metrics="pairwise", near_duplicates={"weight": 0}, lamb=0.8)
    blocks = [block(seed, 250, quality=mean) for seed, mean in enumerate((-0.6, 0.0, 0.6))]
    offers = offers_of(blocks, settings)
    scales = common_scales(offers)
    budgets, _ = budgets_of(offers, settings)
    vectors, quality = (np.concatenate([one[part] for one in blocks]) for part in (0, 1))

    def reached(chosen):
        """Mean quality less the mean cosine, each over its scale."""
        total = vectors[chosen].sum(0)
        cosine = (total @ total - len(chosen)) / (len(chosen) * (len(chosen) - 1))
        terms = {"mean_quality": float(quality[chosen].mean()), "pairwise": -float(cosine)}
        found = scales.terms(terms, settings.metric_weights)
        return settings.lamb * found["quality"] + (1 - settings.lamb) * found["diversity"]

    def together(amounts):
        parts = [
            select(one[0], one[1], settings.model_copy(update={"budget": amount}), scales=scales).indices
            for one, amount in zip(blocks, amounts, strict=True)
        ]
        return np.concatenate([part + 250 * number for number, part in enumerate(parts)])

    assert reached(together(budgets)) > reached(together([50, 50, 50])) + 0.02
