"""Variants: judged on one scale, measured, cached, and never in the way of the pipeline's masks."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selection import METRICS
from fineweb_mask.models.settings.selectors.registry import SELECTORS
from fineweb_mask.tasks.comparison.variants import (
    USUAL,
    VariantError,
    find_ranges,
    left_out,
    missing_for,
    read_lambs,
    read_variants,
    select_variant,
)
from fineweb_mask.tasks.fit import fit_targets
from fineweb_mask.tasks.source.discovery import find_files
from tests.tasks.jobs import ranges_jobs, variant_job
from tests.tasks.stage_files import newest
from tests.tasks.test_fit import EXAMPLES, job_of

EPOCHS = {"policy_gradient": {"n_epochs": 5}}


def jobs(workspace, shards, settings, selector, targets=None, **options):
    for job in ranges_jobs(workspace, shards, settings):
        yield variant_job(workspace, job.shards, settings, selector, find_ranges(job), targets, **options)


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
    by_tokens = settings.model_copy(update={"budget_by": "tokens"})
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


def test_a_second_run_finds_everything_and_a_lost_mask_is_made_again_byte_by_byte(copied):
    workspace, shards, settings = copied.workspace, copied.selection_shards, copied.recipe.selection
    first = [select_variant(job) for job in jobs(workspace, shards, settings, "random")]
    assert not any(file.cached for file in first)
    planned = list(jobs(workspace, shards, settings, "random"))
    again = [select_variant(job) for job in planned]
    assert all(file.cached for file in again)
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
    of_all = settings.model_copy(update={"temperature": 0.5})
    for selector, same in (("random", True), ("quality_sampling", False)):  # options of other selectors
        first, second = (next(jobs(workspace, shards, given, selector)).key for given in (settings, of_all))
        assert (first == second) is same


def test_ids_that_were_selected_elsewhere_are_measured_as_a_selection_is(copied, tmp_path):
    """Those of a selector are measured as its own selection; of a block without any, nothing is."""
    workspace, shards, settings = copied.workspace, copied.selection_shards, copied.recipe.selection
    settings = settings.model_copy(update={"near_duplicates": None})
    for place, own in enumerate(jobs(workspace, shards, settings, "greedy")):
        [expected] = select_variant(own).details["blocks"]
        ids = [row["id"] for one in own.shard_files() or [] for row in _selected(copied, one)]
        path = tmp_path / f"{place}.parquet"
        pq.write_table(pa.table({"id": ids}), path)
        theirs = list(jobs(workspace, shards, settings, "theirs", files=find_files(str(path), "variant theirs")))
        [found] = select_variant(theirs[place]).details["blocks"]
        same = ("selected", "tokens_selected", "random_objective", "objective")
        for one, other in ((found, expected), (found["measures"], expected["measures"])):
            names = same if one is found else other.keys()
            assert {name: one[name] for name in names} == pytest.approx({name: other[name] for name in names}, abs=1e-5)
        assert found["upper_bound"] is None
        [empty] = select_variant(theirs[1 - place]).details["blocks"]
        assert (empty["selected"], empty["objective"], empty["measures"]) == (0, None, None)
    assert theirs[0].key != next(jobs(workspace, shards, settings, "random")).key


def _selected(copied, file):
    [documents] = [one for one in copied.documents if one.name == file.name]
    rows = zip(copied.read(documents).to_pylist(), copied.read(file).to_pylist(), strict=True)
    return [document for document, mask in rows if mask["selected"]]


def test_variants_are_read_each_once_and_all_stands_for_those_that_can_run_and_are_not_slow(built, tmp_path):
    recipe, missing = built.recipe, missing_for(built.recipe)
    assert missing.keys() == {"betr", "rds", "dsir"}
    found = [one.name for one in read_variants(["random", "all"], recipe)]
    assert found[0] == "random"
    assert set(found) == SELECTORS.keys() - missing.keys() - {"policy_gradient"}
    assert left_out(["random", "all"], missing).keys() == {"betr", "rds", "dsir", "policy_gradient"}
    assert left_out(["policy_gradient", "all"], missing).keys() == missing.keys()
    assert left_out(USUAL, missing) == {}
    pq.write_table(pa.table({"id": ["a"]}), tmp_path / "a.parquet")
    own = "greedy[lamb=0.9, metrics={pairwise: 1, disf: 0.5}]"
    one, other, theirs = read_variants([own, "greedy", "greedy", f"theirs={tmp_path / 'a.parquet'}"], recipe)
    assert (one.name, one.settings.solver, one.settings.lamb) == (own, "greedy", 0.9)
    assert one.settings.metric_weights == {"pairwise": 1, "disf": 0.5}
    assert other.settings == recipe.selection.model_copy(update={"solver": "greedy"})
    assert (theirs.name, [file.relative for file in theirs.files]) == ("theirs", ["a.parquet"])
    assert one.objective != other.objective == theirs.objective


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        (["betr"], r"selector betr: it reads target examples: set selection\.targets"),
        (["random", "datamask"], r"selectors may be all, mean_field, policy_gradient.*received 'datamask'"),
        ([], "at least one"),
        (["random[lamb"], "a variant is SELECTOR"),
        (["random[budget=3]"], r"takes KEY=VALUE of metrics, lamb, .*, received 'budget=3'"),
        (["random[lamb]"], "received 'lamb'"),
        (["random[lamb=[]"], "valid YAML"),
        (["random[lamb=3]"], "lamb: "),
        (["theirs=nosuch.parquet"], "variant theirs"),
        (["random={here}/a.jsonl"], "a name that no selector has, and Parquet files"),
        (["theirs={here}/a.parquet"], "variant theirs: a.parquet must have a column 'id'"),
    ],
)
def test_what_is_no_variant_is_named(built, tmp_path, variants, message):
    (tmp_path / "a.jsonl").write_text("{}\n")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(SettingsError, match=message):
        read_variants([one.format(here=tmp_path) if "{" in one else one for one in variants], built.recipe)


def test_weights_of_quality_are_read_or_refused():
    assert read_lambs("1,0,0.5,0.5") == [0, 0.5, 1]
    assert read_lambs("0:1:0.4") == [0, 0.4, 0.8, 1]
    assert read_lambs("0:1:0.1")[3] == 0.3
    for wrong in ("", "0,a", "0,1.2", "nan", "0:1", "0:1:0", "0:1:-1", "0:1:0.0001", "0:inf:1"):
        with pytest.raises(VariantError, match="takes numbers from 0 to 1"):
            read_lambs(wrong)
