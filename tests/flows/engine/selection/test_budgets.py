"""One price for all blocks, as jobs: the total is exact, a killed run goes on, nothing is done twice."""

import pytest

from fineweb_mask.flows.engine.selection.budgets import divide_budget
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.selection.groups import grouped
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.engine.selection.test_corpus import JobsAtOnce
from tests.tasks.number_shards import numbers

SIZES = {"a": 300, "b": 90, "c": 500, "d": 260, "empty": 0}


class Run(JobsAtOnce):
    """Runs the jobs of a selection by one price, and keeps what was selected."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.files = []

    def select(self, workspace, changes):
        settings = PipelineSelectionSettings(
            **{"select_ratio": 0.2, "device": "cpu", "block_budget": "price", "block_size": 400} | changes
        )
        shards = [numbers(workspace, name, rows, seed=seed) for seed, (name, rows) in enumerate(SIZES.items())]
        groups, root = grouped(shards, settings), str(workspace.root)

        def select(selecting):
            for job in selecting:
                self.expect("select", 1)
                self.add(job, self.files.append)

        divide_budget(self, root, groups, settings, select)
        self.finish()
        return self

    @property
    def selected(self):
        return {block["name"]: block["selected"] for file in self.files for block in file.details["blocks"]}


def test_a_run_selects_exactly_the_total_and_is_cached(tmp_path):
    run = Run().select(Workspace(tmp_path), {})
    assert sum(run.selected.values()) == round(0.2 * 1150)
    assert run.expected == len(run.built)
    assert sum(name.startswith("budgets") for name in run.built) == 1
    again = Run().select(Workspace(tmp_path), {})
    assert again.built == []
    assert again.selected == run.selected


def test_what_is_read_in_between_is_not_needed_once_all_is_selected(tmp_path):
    Run().select(Workspace(tmp_path), {})
    for folder in ("prices", "budgets"):
        for path in (tmp_path / folder).iterdir():
            path.unlink()
    assert Run().select(Workspace(tmp_path), {}).built == []


def test_the_order_of_work_does_not_matter_and_a_killed_run_goes_on(tmp_path):
    one, other = Workspace(tmp_path / "one"), Workspace(tmp_path / "other")
    run = Run().select(one, {})
    for seed in range(3):
        with pytest.raises(KeyboardInterrupt):
            Run(seed, stop_after=2).select(other, {})
    resumed = Run(7).select(other, {})
    assert len(resumed.built) == len(run.built) - 6
    assert resumed.selected == run.selected
    for path in (one.root / "masks").iterdir():
        assert (other.root / "masks" / path.name).read_bytes() == path.read_bytes()


def test_one_block_is_selected_from_as_with_a_fixed_share(tmp_path):
    run = Run().select(Workspace(tmp_path), {"block_size": 2000})
    assert [name.split()[0] for name in run.built] == ["select"]
    assert sum(run.selected.values()) == 230
