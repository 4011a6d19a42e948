"""Plan the dataset: survey the corpus, shuffle it if asked to, write every partition, put the dataset in place.

Each step waits for all jobs of the one before. If the dataset is there already, none of them is planned.
"""

from fineweb_mask.flows.engine.scheduler import Jobs, OnDone, add_all
from fineweb_mask.tasks.dataset.output import MATERIALIZE
from fineweb_mask.tasks.dataset.partitioning import Partitioning
from fineweb_mask.tasks.materialize import MaterializeJob
from fineweb_mask.tasks.workspace.references import StageFile


def write_dataset(jobs: Jobs, parts: Partitioning, dataset: MaterializeJob, on_done: OnDone) -> None:
    """Add the jobs that make a dataset, each when its inputs exist.

    Parameters
    ----------
    jobs
        Takes the jobs.
    parts
        The partitions of the corpus.
    dataset
        The last job, without references to what is made before.
    on_done
        Called with its output.
    """
    jobs.expect(MATERIALIZE, 1)
    if jobs.done(dataset) is not None:
        jobs.add(dataset, on_done)
        return

    def put_in_place(survey: StageFile, shuffled: list[StageFile], written: list[StageFile]) -> None:
        made = {"survey": survey, "shuffled": tuple(shuffled), "partitions": tuple(written)}
        jobs.add(dataset.model_copy(update=made), on_done)

    def write(survey: StageFile, shuffled: list[StageFile]) -> None:
        of_partitions = parts.partitions(survey, shuffled)
        add_all(jobs, of_partitions, lambda written: put_in_place(survey, shuffled, written))

    def start(survey: StageFile) -> None:
        if parts.is_shuffled:
            add_all(jobs, parts.shuffles(survey), lambda shuffled: write(survey, shuffled))
        else:
            write(survey, [])

    add_all(jobs, [parts.survey()], lambda found: start(found[0]))
