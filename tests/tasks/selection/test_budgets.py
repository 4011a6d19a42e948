"""The jobs that divide a budget among blocks: what they write, and what their keys depend on."""

import pytest

from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.select import SelectJob, select
from fineweb_mask.tasks.selection.budgets import BudgetsJob, PriceJob, divide_budget, measure_curves
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.number_shards import numbers

SIZES = {"a": 200, "b": 150, "c": 90}


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path)


def settings_of(**changes):
    return PipelineSelectionSettings(**{"select_ratio": 0.2, "block_budget": "price", "device": "cpu"} | changes)


def made(workspace, settings):
    shards = [numbers(workspace, name, rows, seed=rows) for name, rows in SIZES.items()]
    root = str(workspace.root)
    prices = [PriceJob(root=root, shards=[shard], settings=settings) for shard in shards]
    return shards, prices, BudgetsJob(root=root, settings=settings, prices=[job.reference() for job in prices])


@pytest.mark.parametrize("by", ["documents", "tokens"])
def test_all_blocks_together_give_the_share_of_the_corpus(workspace, by):
    settings = settings_of(budget_by=by, block_size=100)
    shards, prices, budgets = made(workspace, settings)
    for job in prices:
        assert measure_curves(job).fingerprint == job.reference().fingerprint
    file = divide_budget(budgets)
    assert file.fingerprint == budgets.reference().fingerprint
    assert len(file.details["budgets"]) == 2 + 2 + 1
    assert sum(file.details["budgets"].values()) == file.details["total"]
    counts = {"selected": 0, "tokens": 0, "tokens_selected": 0}
    for shard in shards:
        job = SelectJob(root=str(workspace.root), shards=[shard], settings=settings, budgets=file)
        for block in select(job).details["blocks"]:
            budget = file.details["budgets"][block["name"]]
            counts = {name: count + block[name] for name, count in counts.items()}
            taken = block["selected" if by == "documents" else "tokens_selected"]
            assert taken == budget if by == "documents" else budget - max(range(10, 210)) < taken <= budget
            assert block["objective"] <= block["upper_bound"] + 1e-6
    assert file.details["total"] == round(0.2 * (440 if by == "documents" else counts["tokens"]))
    if by == "documents":
        assert counts["selected"] == 88


def test_budgets_do_not_depend_on_the_order_of_shards(workspace):
    _, prices, budgets = made(workspace, settings_of())
    for job in reversed(prices):
        measure_curves(job)
    other = budgets.model_copy(update={"prices": budgets.prices[::-1]})
    assert divide_budget(budgets).details == divide_budget(other).details


def test_only_what_is_selected_by_budgets_depends_on_them(workspace):
    [shard, *_], [price, *_], budgets = made(workspace, settings_of())
    root, fixed = str(workspace.root), settings_of(block_budget="fixed")
    plain = SelectJob(root=root, shards=[shard], settings=fixed)
    assert SelectJob(root=root, shards=[shard], settings=settings_of()).key == plain.key
    one = SelectJob(root=root, shards=[shard], settings=settings_of(), budgets=budgets.reference())
    other = budgets.model_copy(update={"prices": budgets.prices[:1]})
    assert one.key != plain.key
    assert one.key != one.model_copy(update={"budgets": other.reference()}).key
    assert PriceJob(root=root, shards=[shard], settings=settings_of(block_size=300)).key == price.key
    assert PriceJob(root=root, shards=[shard], settings=settings_of(lamb=0.9)).key != price.key


def test_a_corpus_without_a_document_has_no_budgets(workspace):
    root, settings = str(workspace.root), settings_of()
    price = PriceJob(root=root, shards=[numbers(workspace, "empty", 0)], settings=settings)
    file = divide_budget(BudgetsJob(root=root, settings=settings, prices=[measure_curves(price)]))
    assert file.details["budgets"] == {}
