"""Documents of a part: what is taken, put together, and drawn for each."""

import itertools

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from fineweb_mask.models.selection.corpus.documents import Documents, flat, made, nested, repeats, sampled, tree_of
from fineweb_mask.models.selection.corpus.rule import Rule
from fineweb_mask.models.selection.corpus.sample import CorpusStatistics, SampleProblem
from fineweb_mask.models.selection.corpus.whole import select_corpus
from fineweb_mask.models.selection.inputs import SelectionInputError
from fineweb_mask.models.settings.selection import GroupSettings, NearDuplicateSettings, SelectionSettings


@pytest.mark.parametrize("name", ["parts", "parts_with_tokens"])
def test_parts_are_cut_and_put_together_again(name, request):
    whole = Documents.concatenate(request.getfixturevalue(name))
    half = np.arange(len(whole.quality)) < 1000
    together = Documents.concatenate([whole.take(half), whole.take(~half)])
    for before, after in zip(whole, together, strict=True):
        np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("name", ["parts", "parts_with_tokens"])
def test_arrays_make_the_same_documents(name, request):
    [first, *_] = request.getfixturevalue(name)
    again = made(Documents, nested(flat({"a": first, "b": {"vectors": 0}}))["a"])
    for before, after in zip(first, again, strict=True):
        np.testing.assert_array_equal(before, after)


def test_ties_do_not_depend_on_who_is_in_the_sample():
    drawn = np.random.default_rng(0).random(100_000)
    documents = Documents(np.empty((len(drawn), 1)), np.empty(len(drawn)), drawn)
    sample = drawn < 0.1
    values = documents.ties
    error = values.std() / np.sqrt(sample.sum())
    assert values[sample].mean() == pytest.approx(values.mean(), abs=4 * error)
    assert len(np.unique(documents.ties)) > 0.999 * len(drawn)


def test_a_document_costs_one_or_its_tokens(parts, parts_with_tokens):
    assert set(parts[0].costs) == {1}
    np.testing.assert_array_equal(parts_with_tokens[0].costs, parts_with_tokens[0].tokens)


CPU = torch.device("cpu")


def grouped(parts):
    """Put documents into four groups of unequal size."""
    names = np.array(["news", "code/python", "", "rare"])
    random = np.random.default_rng(3)
    return [
        part._replace(groups=names[random.choice(4, len(part.quality), p=[0.6, 0.25, 0.13, 0.02])]) for part in parts
    ]


def settings_of(**changes):
    return SelectionSettings(**{"metrics": "pairwise", "near_duplicates": NearDuplicateSettings(weight=0)} | changes)


def counts(parts, masks, costs=False):
    groups = np.concatenate([part.groups for part in parts])[np.concatenate(masks)]
    weights = np.concatenate([part.costs for part in parts])[np.concatenate(masks)]
    return {str(name): int(weights[groups == name].sum()) for name in np.unique(groups)}


@pytest.mark.parametrize("weight", [0, 1])
@pytest.mark.parametrize("metrics", ["pairwise", "disf"])
@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_every_group_has_its_budget(parts, metrics, rate, weight):
    parts = grouped(parts)
    shares = {"news": 0.25, "code/python": 0.5, "": 0.25}
    settings = settings_of(metrics=metrics, near_duplicates=NearDuplicateSettings(weight=weight))
    found = select_corpus(lambda: parts, settings, rate=rate, groups=GroupSettings(column="x", shares=shares))
    assert counts(parts, found.masks) == {"news": 85, "code/python": 170, "": 85}
    assert found.upper_bound >= found.objective
    assert found.gap < 0.1


@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_groups_have_their_budgets_also_where_clusters_are_covered(parts_with_tokens, rate):
    parts, settings = grouped(parts_with_tokens), settings_of(metrics="cluster_coverage", budget_by="tokens")
    found = select_corpus(lambda: parts, settings, rate=rate, groups=GroupSettings(column="x", shares="equal"))
    everything = counts(parts, [np.ones(len(part.quality), dtype=bool) for part in parts])
    for name, used in counts(parts, found.masks).items():
        most = min(found.asked[name], everything[name])
        assert 0.98 * most < used <= most
    assert found.random_objective < found.objective <= found.upper_bound


def test_a_group_of_which_the_sample_has_too_few_candidates_still_has_its_budget(parts):
    """In the sample, the best of the group are twice as frequent as in the corpus."""
    parts = grouped(parts)
    random = np.random.default_rng(0)
    skewed = []
    for part in parts:
        own = (part.groups == "").nonzero()[0]
        best = own[np.argsort(part.quality[own])[-len(own) // 3 :]]
        lots = part.lots.copy()
        lots[own] = 0.3 + 0.7 * random.random(len(own))
        lots[best] = 0.29 * random.random(len(best))
        skewed.append(part._replace(lots=lots))
    shares = {"news": 0.5, "": 0.5}
    settings = SelectionSettings(metrics="pairwise", select_ratio=0.12)
    found = select_corpus(lambda: skewed, settings, rate=0.3, groups=GroupSettings(column="x", shares=shares))
    assert counts(skewed, found.masks) == {"news": 204, "": 204}


def test_equal_shares_take_all_of_a_small_group(parts):
    parts = grouped(parts)
    rare = sum(int((part.groups == "rare").sum()) for part in parts)
    found = select_corpus(
        lambda: parts, settings_of(), rate=0.5, groups=GroupSettings(column="x", shares="equal", max_repeats=4)
    )
    assert rare < 85
    assert counts(parts, found.masks) == {"news": 85, "code/python": 85, "": 85, "rare": rare}
    assert found.rule.repeats == {"rare": pytest.approx(85 / rare)}
    everyone = Documents.concatenate(parts).take(np.concatenate(found.masks))
    used = repeats(everyone, found.rule.repeats)
    assert used[everyone.groups != "rare"].tolist() == [1] * 255
    assert used.sum() == pytest.approx(340, abs=20)


def test_proportional_shares_are_nearly_those_of_no_groups(parts):
    named = grouped(parts)
    everyone = select_corpus(lambda: parts, settings_of(), rate=1.0)
    found = select_corpus(lambda: named, settings_of(), rate=1.0, groups=GroupSettings(column="x"))
    total = {
        name: count / 10 for name, count in counts(named, [np.ones(len(one.quality), bool) for one in parts]).items()
    }
    for name, count in counts(named, found.masks).items():
        assert abs(count - total[name]) <= 1
    assert found.objective <= everyone.upper_bound


def test_one_group_is_as_none(parts):
    one = [part._replace(groups=np.full(len(part.quality), "all")) for part in parts]
    found = select_corpus(lambda: one, settings_of(), rate=0.5, groups=GroupSettings(column="x"))
    without = select_corpus(lambda: parts, settings_of(), rate=0.5)
    np.testing.assert_array_equal(np.concatenate(found.masks), np.concatenate(without.masks))
    assert found.upper_bound == without.upper_bound


def test_budgets_of_tokens_are_filled_to_less_than_one_document(parts_with_tokens):
    parts = grouped(parts_with_tokens)
    found = select_corpus(
        lambda: parts,
        settings_of(budget_by="tokens", select_ratio=0.05),
        rate=0.5,
        groups=GroupSettings(column="x", shares={"news": 0.5, "": 0.5}),
    )
    total = sum(int(part.tokens.sum()) for part in parts)
    for count in counts(parts, found.masks).values():
        assert total * 0.025 - 2000 < count <= total * 0.025 + 1


def test_all_documents_can_be_selected(parts):
    parts = grouped(parts)
    found = select_corpus(lambda: parts, settings_of(select_ratio=1.0), rate=0.5, groups=GroupSettings(column="x"))
    assert all(mask.all() for mask in found.masks)


def test_a_rule_comes_back_and_leaves_out_groups_that_it_does_not_know(parts):
    parts = grouped(parts)
    found = select_corpus(lambda: parts, settings_of(), rate=0.5, groups=GroupSettings(column="x", shares="equal"))
    rule = made(Rule, nested(flat(tree_of(found.rule))), CPU)
    assert rule.thresholds == found.rule.thresholds
    assert rule.repeats == found.rule.repeats
    np.testing.assert_array_equal(rule.select(parts[0], CPU)[0], found.masks[0])
    new = parts[0]._replace(groups=np.full(len(parts[0].quality), "new"))
    assert not rule.select(new, CPU)[0].any()


@pytest.mark.long
@hypothesis.settings(deadline=None, max_examples=40)
@hypothesis.given(data=st.data())
def test_no_selection_of_the_same_budgets_is_above_the_bound(data):
    seed, n = data.draw(st.integers(0, 10**6)), data.draw(st.integers(6, 12))
    weigh = data.draw(st.booleans())
    random = np.random.default_rng(seed)
    documents = Documents(
        random.normal(size=(n, 3)).astype(np.float32),
        random.normal(size=n).astype(np.float32),
        random.random(n),
        random.integers(2, 5, n) if weigh else None,
        groups=np.array(["a", "b"])[(np.arange(n) % 2)],
    )
    settings = settings_of(
        metrics=data.draw(st.sampled_from(["pairwise", "disf", "cluster_coverage"])),
        lamb=data.draw(st.sampled_from([0.0, 0.3, 0.8, 1.0])),
        select_ratio=0.5,
        normalize="none",
        budget_by="tokens" if weigh else "documents",
    )
    groups = GroupSettings(column="x", shares=data.draw(st.sampled_from(["equal", "proportional"])))
    pieces = [documents.take(np.arange(n) < 3), documents.take(np.arange(n) >= 3)]
    try:
        found = select_corpus(lambda: pieces, settings, groups=groups)
    except SelectionInputError:  # a budget that holds no document
        return
    problem = SampleProblem(
        documents, CorpusStatistics.of(documents, CPU), settings, 128, CPU, ranges=found.ranges, groups=groups
    )
    costs, chosen = documents.costs, np.concatenate(found.masks)
    whole = {name: documents.groups == name for name in problem.budgets}
    used = {name: int(costs[own & chosen].sum()) for name, own in whole.items()}
    masks = np.array(list(itertools.product([False, True], repeat=n)))
    full = np.ones(len(masks), dtype=bool)
    for name, own in whole.items():
        spent = masks[:, own] @ costs[own]
        full &= (used[name] <= spent) & (spent <= problem.budgets[name])
    best = float(problem.scaled.objective.value(torch.from_numpy(masks[full])).max())
    assert found.upper_bound >= best - 1e-5 * max(1.0, abs(best))


def test_the_sample_grows_with_its_rate(parts):
    counts = [len(sampled(parts[2], rate).quality) for rate in (0.0, 0.1, 0.5, 1.0)]
    assert counts[0] == 0
    assert counts[3] == 1500
    assert abs(counts[1] - 150) < 60
    smaller, larger = sampled(parts[2], 0.1), sampled(parts[2], 0.5)
    assert set(smaller.lots) < set(larger.lots)
