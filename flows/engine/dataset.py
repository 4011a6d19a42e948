"""Plan the dataset: survey the corpus, shuffle it if asked to, write every partition, put the dataset in place.

Each step waits for all jobs of the one before. If the dataset is there already, none of them is planned. In a local
folder, a partition is written before all this, when its own shards are selected from.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from fineweb_mask.flows.engine.scheduler import Jobs, OnDone, add_all
from fineweb_mask.models.settings import MaterializeSettings
from fineweb_mask.tasks.dataset.output import MATERIALIZE
from fineweb_mask.tasks.dataset.partition import PartitionJob, PartJob
from fineweb_mask.tasks.dataset.partitioning import Partitioning, divided
from fineweb_mask.tasks.dataset.parts import Parts
from fineweb_mask.tasks.materialize import MaterializeJob
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace


class EarlyParts:
    """Writes each partition of a dataset as soon as its own shards are selected from.

    At a URL, a dataset's files lie in a folder that is named after what all shards were selected, so there is nothing
    to write early. Nor is there in a shuffle.

    Parameters
    ----------
    jobs
        Takes the jobs.
    root
        The workspace's folder, or its URL.
    sources
        The source's file of every shard, by its name.
    settings
        How the dataset is written.
    """

    def __init__(
        self, jobs: Jobs, root: str, sources: Mapping[str, SourceShard], settings: MaterializeSettings
    ) -> None:
        self.written: dict[str, StageFile] = {}
        """The parts, by the fingerprint of their key."""
        self._jobs = jobs
        self._root = root
        self._sources = sources
        self._settings = settings
        parts = Parts.of(Workspace(root), settings, "")
        self._folder = parts.folder
        self._partitions = divided(sources, settings) if parts.is_local and not settings.shuffle else []
        if len(self._partitions) < 2:  # there is nothing to be early for
            self._partitions = []
        self._number_of = {name: number for number, names in enumerate(self._partitions) for name in names}
        self._asked: set[int] = set()

    def add(self, selected: Sequence[str], files: Callable[[str], ShardFiles | None], *, is_new: bool) -> None:
        """Write the partitions of shards that were selected from, if all other shards of theirs were, too.

        Parameters
        ----------
        selected
            The names of the shards.
        files
            Returns a shard's files, or None if it is left out; raises KeyError if it is not selected from yet.
        is_new
            Whether this run selected from them. Else a part is taken that an earlier run wrote, and none is written:
            the dataset may be there.
        """
        if not is_new and not self._folder.is_dir():
            return
        for number in sorted({self._number_of[name] for name in selected if name in self._number_of} - self._asked):
            try:
                shards = [shard for name in self._partitions[number] if (shard := files(name)) is not None]
            except KeyError:
                continue
            self._asked.add(number)
            at_once = self._jobs.at_once
            job = Partitioning(self._root, shards, self._sources, self._settings, at_once).early(number)
            if job is not None and (is_new or self._jobs.done(job) is not None):
                self._jobs.expect(MATERIALIZE, 1)
                self._jobs.add(job, partial(self._keep, job))

    def _keep(self, job: PartitionJob, file: StageFile | None) -> None:
        if file is not None:
            self.written[job.key.fingerprint] = file


def remove_left_parts(parts: Partitioning, dataset: MaterializeJob) -> None:
    """Remove what a run left that was killed after it had put the dataset in place, before it removed its parts."""
    if (survey := parts.survey().current()) is None or dataset.current() is None:
        return
    shuffled = parts.shuffles(survey) if parts.is_shuffled else []
    streams = [file for job in shuffled if (file := job.current()) is not None]
    made: list[PartJob] = [*parts.counts(survey)]
    if len(streams) == len(shuffled):  # else the partitions, which are removed before, are gone
        made += parts.partitions(survey, streams)
    left = [file for job in made if (file := job.current()) is not None]
    with dataset.workspace.alone():
        Parts.of(dataset.workspace, dataset.recipe.materialize, dataset.version).remove([*left, *streams, survey])


def write_dataset(
    jobs: Jobs, parts: Partitioning, dataset: MaterializeJob, on_done: OnDone, early: Mapping[str, StageFile]
) -> None:
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
    early
        Parts that were written before, by the fingerprint of their key.
    """
    jobs.expect(MATERIALIZE, 1)
    if jobs.done(dataset) is not None:
        jobs.add(dataset, on_done)
        return

    def write(survey: StageFile, shuffled: list[StageFile]) -> None:
        counts, partitions = parts.counts(survey), parts.partitions(survey, shuffled)
        there = {job.name: early[job.key.fingerprint] for job in partitions if job.key.fingerprint in early}
        rest = [job for job in partitions if job.name not in there]

        def put_in_place(made: list[StageFile]) -> None:
            written = there | {file.name: file for file in made[len(counts) :]}
            update = {
                "survey": survey,
                "shuffled": tuple(shuffled),
                "partitions": tuple(written[job.name] for job in partitions),
                "counted": tuple(made[: len(counts)]),
                "unused": tuple(file for file in early.values() if file not in written.values()),
            }
            jobs.add(dataset.model_copy(update=update), on_done)

        add_all(jobs, [*counts, *rest], put_in_place)

    def start(survey: StageFile) -> None:
        if parts.is_shuffled:
            add_all(jobs, parts.shuffles(survey), lambda shuffled: write(survey, shuffled))
        else:
            write(survey, [])

    add_all(jobs, [parts.survey()], lambda found: start(found[0]))
