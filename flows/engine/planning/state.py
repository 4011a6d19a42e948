"""Hold what is known of the shards of a run, and call those that ask when it changes."""

from collections.abc import Callable, Collection
from functools import partial

from fineweb_mask.flows.engine.scheduler import Jobs
from fineweb_mask.flows.pipeline.choices import Share
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.workspace.job import GroupJob, StageJob
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import NO_FILE, ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace


class State:
    """What is known of the shards of one run.

    Parameters
    ----------
    jobs
        Takes the jobs: runs them, or only checks whether they are done.
    workspace
        The workspace of the corpus.
    settings
        The recipe.
    shards
        The source's files.
    listing
        The stage files that were there before. Without it, files are opened to see whether they are current.
    share
        The shards that are worked on, besides those of the sample that is fitted on; None works on all.
    refresh
        Names of the stages that are run again, although their outputs are current.
    remembers
        Whether to record in which order shards came, and which are selected from together, for later runs.
    """

    def __init__(
        self,
        jobs: Jobs,
        workspace: Workspace,
        settings: PipelineSettings,
        shards: list[SourceShard],
        *,
        listing: Listing | None,
        share: Share | None,
        refresh: Collection[str],
        remembers: bool,
    ) -> None:
        self.documents: dict[str, StageFile] = {}  # by shard, as are the next four
        self.scores: dict[str, StageFile] = {}
        self.embeddings: dict[str, StageFile] = {}
        self.duplicates: dict[str, StageFile] = {}
        self.masks: dict[str, StageFile] = {}
        self.ingested: set[str] = set()  # shards, or quarantined
        self.sample: list[str] = []  # shards that are fitted on
        self.jobs = jobs
        self.listing = listing
        self.remembers = remembers
        self.workspace = workspace
        self.root = workspace.address
        self.settings = settings
        self.shards = {shard.name: shard for shard in shards}
        self.own = list(self.shards) if share is None else list(self.shards)[share.number - 1 :: share.of]
        self.refresh = frozenset(refresh)
        self._asked: list[Callable[[str | None], None]] = []

    def after_each(self) -> None:
        """Do what is to be done after each job of `ask_per_shard`: nothing, unless a plan does more."""

    @property
    def selectable(self) -> list[ShardFiles]:
        """The shards that are scored and embedded, in the order of the source."""
        return [self.files_of(name) for name in self.shards if name in self.scores and name in self.embeddings]

    def files_of(self, name: str) -> ShardFiles:
        """Return the files of a shard, as far as the stages have come."""
        return ShardFiles(
            documents=self.documents[name],
            scores=self.scores.get(name, NO_FILE),
            embeddings=self.embeddings.get(name, NO_FILE),
            duplicates=self.duplicates.get(name, NO_FILE),
            masks=self.masks.get(name, NO_FILE),
        )

    def is_left_out(self, name: str) -> bool:
        """Return whether a shard is quarantined, or could not be ingested."""
        return name in self.jobs.quarantined or (name in self.ingested and name not in self.documents)

    def files_of_job(self, job: GroupJob) -> dict[str, StageFile]:
        """Return the files of a job's shards by the shard's name; they may be newer than the listing."""
        return {file.name: file for file in job.shard_files(self.listing) or job.shard_files() or []}

    def ask(self, plan_ready: Callable[[str | None], None]) -> None:
        """Call `plan_ready` now and after every change: with a shard, or with None if all may be ready."""
        self._asked.append(plan_ready)
        plan_ready(None)

    def changed(self, shard: str | None = None) -> None:
        """Call all that asked, with the shard that has changed, or with None if all may be ready."""
        for plan_ready in self._asked:
            plan_ready(shard)

    def ask_per_shard(
        self,
        stage: str,
        job_of: Callable[[StageFile], StageJob | None],
        on_done: Callable[[StageJob, StageFile | None], None],
    ) -> None:
        """Add a job for every own shard that is ingested, as soon as `job_of` returns one for its documents."""
        waiting = dict.fromkeys(self.own)

        def plan_ready(shard: str | None) -> None:
            for name in list(waiting) if shard is None else [shard] if shard in waiting else []:
                if name in self.documents:
                    job = job_of(self.documents[name])
                    if job is not None:
                        del waiting[name]
                        self.jobs.add(job, partial(self._after, on_done, job))
                elif name in self.ingested:
                    del waiting[name]
                    self.jobs.expect(stage, -1)

        self.jobs.expect(stage, len(self.own))
        self.ask(plan_ready)

    def _after(
        self, on_done: Callable[[StageJob, StageFile | None], None], job: StageJob, file: StageFile | None
    ) -> None:
        on_done(job, file)
        self.after_each()


def keep(files: dict[str, StageFile], job: StageJob, file: StageFile | None) -> None:
    """Enter the file of a job under its name, if it made one."""
    if file is not None:
        files[job.name] = file
