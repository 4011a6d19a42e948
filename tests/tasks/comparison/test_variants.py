"""Variants and sweeps: judged on one scale, measured, cached, and never in the way of the pipeline's masks."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selection import METRICS
from fineweb_mask.models.settings.selectors.options import QualitySamplingSettings
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from fineweb_mask.tasks.comparison.variants import (
    SelectorError,
    check_selectors,
    find_ranges,
    left_out,
    missing_for,
    noted_seconds,
    select_variant,
    shared_settings,
)
from fineweb_mask.tasks.fit.models import fit_targets
from fineweb_mask.tasks.selection.blocks import group_name, grouped
from tests.tasks.fit.test_models import EXAMPLES, job_of
from tests.tasks.jobs import ranges_jobs, variant_job
from tests.tasks.stage_files import newest

LAMBS = (0.0, 0.5, 1.0)
EPOCHS = {"policy_gradient": {"n_epochs": 5}}


def jobs(workspace, shards, settings, selector, targets=None, **options):
    found = {job.name: find_ranges(job) for job in ranges_jobs(workspace, shards, settings)}
    for group in grouped(shards, settings.block_size):
        yield variant_job(workspace, group, settings, selector, found.get(group_name(group)), targets, **options)


@pytest.fixture
def targets(copied, tmp_path):
    pq.write_table(pa.Table.from_pylist(EXAMPLES), tmp_path / "examples.parquet")
    return fit_targets(job_of(copied, tmp_path / "examples.parquet"))


@pytest.fixture
def settings(copied):
    return PipelineSelectionSettings.model_validate(copied.recipe.selection.model_dump() | EPOCHS)


def test_datamask_selects_the_masks_of_the_pipeline(copied):
    """Two blocks, each with a seed and ranges of its own: the same selection as `select` made, in another folder."""
    before = {file.name: copied.workspace.resolve(file).read_bytes() for file in copied.masks}
    for job in jobs(copied.workspace, copied.selection_shards, copied.recipe.selection, "mean_field"):
        select_variant(job)
        for file in job.shard_files() or []:
            ours, theirs = copied.read(file), pq.read_table(newest(copied.workspace, "masks", file.name))
            assert file.path == f"compare/masks/mean_field/{file.name}.{job.key.tag}.parquet"
            assert ours.equals(theirs)
    assert {file.name: copied.workspace.resolve(file).read_bytes() for file in copied.masks} == before


@pytest.mark.long
def test_every_selector_is_judged_by_the_same_objective_over_the_same_tokens(copied, settings, targets):
    found = {}
    by_tokens = shared_settings(settings, "tokens")
    for selector in SELECTORS:
        job = next(jobs(copied.workspace, copied.selection_shards, settings, selector, targets))
        [found[selector]] = select_variant(job).details["blocks"]
        job = next(jobs(copied.workspace, copied.selection_shards, by_tokens, selector, targets))
        [block] = select_variant(job).details["blocks"]
        budget = round(by_tokens.select_ratio * block["tokens"])
        assert 0.7 * budget < block["tokens_selected"] <= budget
        filled = block["tokens_selected"] / budget
        for name, share in {"mean_quality": filled, "facility": 1, "disf": filled}.items():  # over the budget
            assert block["measures"][name] * share == pytest.approx(block["terms"][name], rel=1e-5)
    assert len({(block["selected"], block["random_objective"]) for block in found.values()}) == 1
    best = found["mean_field"]
    for block in found.values():
        assert block["objective"] <= best["objective"] + 1e-6 <= best["upper_bound"] + 2e-6
        assert block["measures"].keys() == {"mean_quality", *METRICS, "near_duplicates"}
        for name in ("mean_quality", "facility", "disf"):
            assert block["measures"][name] == pytest.approx(block["terms"][name], abs=1e-6)


def test_variants_get_the_same_share_of_what_is_asked_for_unless_the_recipe_counts():
    settings = PipelineSelectionSettings(device="cpu")
    assert shared_settings(settings, "tokens").budget_by == "tokens"
    assert shared_settings(settings, "documents") == shared_settings(settings, None) == settings
    counted = settings.model_copy(update={"budget": 30})
    assert shared_settings(counted, "tokens") == counted


def test_a_second_run_finds_everything_and_a_lost_mask_is_made_again_byte_by_byte(copied):
    workspace, shards, settings = copied.workspace, copied.selection_shards, copied.recipe.selection
    first = [select_variant(job) for job in jobs(workspace, shards, settings, "random")]
    assert not any(file.cached for file in first)
    planned = list(jobs(workspace, shards, settings, "random"))
    again = [select_variant(job) for job in planned]
    assert all(file.cached for file in again)
    assert all(noted_seconds(job)["seconds"] > 0 for job in planned)
    noted = planned[0].seconds_path.read_text()
    for of_another in (noted.replace(planned[0].key.fingerprint, "another"), "{"):
        planned[0].seconds_path.write_text(of_another)
        assert noted_seconds(planned[0]) == {}
    masks = {path: path.read_bytes() for path in (workspace.root / "compare" / "masks").rglob("*.parquet")}
    for path in masks:
        path.unlink()
    assert not any(select_variant(job).cached for job in planned)
    assert {path: path.read_bytes() for path in masks} == masks


def test_the_keys_follow_what_is_read(copied):
    workspace, shards, settings = copied.workspace, copied.selection_shards, copied.recipe.selection

    def key(selector="greedy", **changes):
        changed = PipelineSelectionSettings.model_validate(settings.model_dump() | changes)
        return next(jobs(workspace, shards, changed, selector)).key.fingerprint

    assert key() == key(device="auto") == key(solver="random")
    assert len({key(), key("random"), key(lamb=0.2), key(seed=3), key(metrics="disf"), key(select_ratio=0.5)}) == 6
    given = (settings.model_copy(update=change) for change in ({"lamb": 0.1}, {"lamb": 0.2}, {"seed": 9}))
    one, other, moved = (ranges_jobs(workspace, shards, each)[0].key for each in given)
    assert one == other != moved
    of_all = settings.model_copy(update={"quality_sampling": QualitySamplingSettings(temperature=0.5)})
    for selector, same in (("random", True), ("quality_sampling", False)):  # options of other selectors
        first, second = (next(jobs(workspace, shards, given, selector)).key for given in (settings, of_all))
        assert (first == second) is same


def test_a_sweep_holds_a_mask_for_every_value(copied):
    workspace, shards, settings = copied.workspace, copied.selection_shards, copied.recipe.selection
    settings = settings.model_copy(update={"near_duplicates": None})
    for job in jobs(workspace, shards, settings, "mean_field", lambs=LAMBS):
        group = job.shards
        file = select_variant(job)
        assert select_variant(job).cached
        assert job.model_copy(update={"lambs": (0.0, 1.0)}).key != job.key
        tables = {one.name: copied.read(one) for one in job.shard_files() or []}
        for shard in group:
            table = tables[shard.name]
            pipeline = pq.read_table(newest(workspace, "masks", shard.name))
            assert table["row"].to_pylist() == list(range(shard.rows))
            assert table["block"].equals(pipeline["block"])
        for lamb in LAMBS:
            [block] = [block for block in file.details["blocks"] if block["lamb"] == lamb]
            chosen = sum(table[f"lamb={lamb}"].to_numpy().sum() for table in tables.values())
            assert chosen == block["selected"] == round(0.25 * block["documents"])
        [last] = [block for block in file.details["blocks"] if block["lamb"] == 1]
        quality = np.concatenate([copied.read(shard.scores)["quality"].to_numpy() for shard in group])
        kept = np.sort(quality)[::-1][: last["selected"]]
        assert last["measures"]["mean_quality"] == pytest.approx(kept.mean(), rel=1e-5)
        masks = {path: path.read_bytes() for path in (workspace.root / "sweep" / "masks").rglob("*.parquet")}
        assert not select_variant(job.model_copy(update={"force": True})).cached
        assert {path: path.read_bytes() for path in masks} == masks


def test_all_stands_for_every_selector_that_can_run_and_is_not_slow_and_others_are_refused(built):
    missing = missing_for(built.recipe)
    assert missing.keys() == {"betr", "rds", "dsir"}
    found = check_selectors(["random", "all"], missing)
    assert found[0] == "random"
    assert set(found) == SELECTORS.keys() - missing.keys() - {"policy_gradient"}
    assert left_out(["random", "all"], missing).keys() == {"betr", "rds", "dsir", "policy_gradient"}
    assert left_out(["policy_gradient", "all"], missing).keys() == missing.keys()
    assert left_out(["random"], missing) == {}
    assert check_selectors(["random", "greedy", "random"]) == ["random", "greedy"]
    for names, message in (
        (["betr"], r"selector betr: it reads target examples: set selection\.targets"),
        (["random", "datamask"], r"selectors may be all, mean_field, policy_gradient.*received 'datamask'"),
        ([], "at least one"),
    ):
        with pytest.raises(SelectorError, match=message):
            check_selectors(names, missing)
