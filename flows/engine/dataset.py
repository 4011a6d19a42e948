"""Plan the dataset: write every partition, then put the dataset in place, unless it is there already."""

from fineweb_mask.flows.engine.scheduler import Jobs, OnDone, add_all
from fineweb_mask.tasks.dataset.output import MATERIALIZE
from fineweb_mask.tasks.dataset.partitioning import Partitioning
from fineweb_mask.tasks.materialize import MaterializeJob
from fineweb_mask.tasks.workspace.references import StageFile


def write_dataset(jobs: Jobs, partitioning: Partitioning, dataset: MaterializeJob, on_done: OnDone) -> None:
    """Add the jobs that make a dataset; `on_done` is called with the output of the last one, `dataset`."""
    jobs.expect(MATERIALIZE, 1)
    if jobs.done(dataset) is not None:
        jobs.add(dataset, on_done)
        return

    def put_in_place(partitions: list[StageFile]) -> None:
        jobs.add(dataset.model_copy(update={"partitions": tuple(partitions)}), on_done)

    add_all(jobs, partitioning.jobs(), put_in_place)
