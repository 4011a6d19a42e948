"""Run the jobs of a plan without Prefect."""

import random

import pyarrow.parquet as pq

from fineweb_mask.flows.engine.registry import ALL_STAGES, TASKS
from fineweb_mask.tasks.workspace.job import BadShardError


class JobsAtOnce:
    """Runs the jobs that it is given, one at a time: in their order, at random, or those of later stages first."""

    def __init__(self, seed=None, stop_after=None, *, later_first=False):
        self.waiting, self.built, self.expected, self.quarantined, self.at_once = [], [], 0, {}, 1
        self._random = None if seed is None else random.Random(seed)
        self._left = stop_after
        self._later_first = later_first

    def expect(self, _stage, jobs):
        self.expected += jobs

    def add(self, job, on_done):
        self.waiting.append((job, on_done))

    def done(self, job):
        return job.current()

    def finish(self):
        while self.waiting:
            job, on_done = self.waiting.pop(self._place())
            if self._left == len(self.built):
                raise KeyboardInterrupt
            try:
                file = TASKS[job.stage.name](job)
            except BadShardError as error:
                self.quarantined[job.name] = str(error)
                on_done(None)
                continue
            if not file.cached:
                self.built.append(f"{job.kind} {job.name}")
            on_done(file)

    def _place(self):
        """Return the place of the next job among those that wait."""
        if self._random is not None:
            return self._random.randrange(len(self.waiting))
        if self._later_first:
            stages = [ALL_STAGES.index(job.stage.shown_as) for job, _ in self.waiting]
            return stages.index(max(stages))
        return 0


def write_shard(corpus, source, name, rows):
    """Write some of the sample corpus's documents as a shard."""
    table = pq.read_table(sorted((source / "corpus").glob("*.parquet"))[0])
    pq.write_table(table.take(list(rows)), corpus / f"{name}.parquet")
