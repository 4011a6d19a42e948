"""Embed a shard, do what reads its vectors, and discard them: `embedding.keep: false`.

The vectors are those that the stage `embed` writes, to the last bit, and so is all that is made of them: the outputs
are those of the jobs that read stored vectors, under the same keys. Only one shard's vectors are there at a time, in a
file on the machine that works on it.
"""

from pathlib import Path
from typing import Any, ClassVar

from fineweb_mask.tasks.embed import EmbedJob, temporary_vectors
from fineweb_mask.tasks.select import SelectJob, select
from fineweb_mask.tasks.selection.corpus.learning import MeasureJob, SampleJob, draw_sample, measure
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, StageJob, StageTask, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import StageFile, StageKey

Work = SampleJob | MeasureJob | SelectJob
"""What reads the vectors of one shard."""

TASKS: dict[type[Work], StageTask[Any]] = {SampleJob: draw_sample, MeasureJob: measure, SelectJob: select}


class JudgeJob(StageJob):
    """Embed one shard for another job, whose output is this one's."""

    stage: ClassVar[Stage] = Stage("judge", version=1, label="select", run_with=("select",))
    embed: EmbedJob
    work: Work

    @property
    def name(self) -> str:
        """The name of the shard."""
        return self.work.name

    @property
    def key(self) -> StageKey:
        """What the output is known by, with stored vectors as without."""
        return self.work.key

    @property
    def shard_names(self) -> list[str]:
        """The shards that the output is of."""
        return self.work.shard_names

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.embed.uses_gpu or self.work.uses_gpu

    def depends_on(self) -> Dependencies:
        """Return what the output depends on."""
        return self.work.depends_on()

    def paths(self) -> list[Path]:
        """Return the files of the output."""
        return self.work.paths()

    def current(self, listing: Listing | None = None) -> StageFile | None:
        """Return the output if it is current, else None."""
        return self.work.current(listing)


@stage_task
def judge(job: JudgeJob) -> None:
    """Write what a job makes of a shard's vectors, which are made for it and deleted.

    Raises
    ------
    BadShardError
        As the stage `embed` does.
    """
    with temporary_vectors(job.embed) as vectors:
        work = _reading(job.work, vectors)
        TASKS[type(work)](work.model_copy(update={"force": job.force}))


def _reading(work: Work, vectors: StageFile) -> Work:
    """Return a job that reads vectors from this file."""
    if isinstance(work, SelectJob):
        [shard] = work.shards
        return work.model_copy(update={"shards": [shard.model_copy(update={"embeddings": vectors})]})
    return work.model_copy(update={"shard": work.shard.model_copy(update={"embeddings": vectors})})
