"""Learn one selection over all shards of a corpus: a rule, from a random sample and from passes over all documents.

A rule says what a document is worth and from where on documents are selected (models/selection/corpus). It is kept in
`fitted/` while the corpus grows, as an encoder is: new shards are selected from by the same rule, until a refit.

Every pass is one job for each shard, `MeasureJob`, and one that gathers them, `LearnJob`, which also learns the next
rule. Where the documents at the threshold are not among those that a pass kept, the pass is made again around it.
"""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.selection.corpus.arrays import read_arrays, write_arrays
from fineweb_mask.tasks.selection.shard_documents import read_columns, read_parts
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.manifest import read_manifest, write_manifest
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles

if TYPE_CHECKING:
    import torch

    from fineweb_mask.models.selection.corpus.documents import Arrays
    from fineweb_mask.models.selection.corpus.rule import Frame
    from fineweb_mask.models.selection.corpus.sample import SampleProblem
    from fineweb_mask.models.selection.ranges import Ranges

NOT_LEARNED = {"device", "block_size", "blocks", "block_budget", "passes", "sample", "scope"}
"""Settings on which what is learned on a sample does not depend."""


class _CorpusJob(ShardJob):
    """A job whose output is read while a rule is learned, and not after."""

    settings: PipelineSelectionSettings

    @property
    def shard_names(self) -> list[str]:
        """No shard: a later job selects from it."""
        return []

    @property
    def by_tokens(self) -> bool:
        """Whether the budget is one of tokens."""
        return self.settings.budget_by == "tokens"


class SampleJob(_CorpusJob):
    """Draw a shard's part of the sample, and sum over all its documents."""

    stage: ClassVar[Stage] = Stage(
        "sample", version=1, label="select", folders=("samples",), interim=True, run_with=("select",)
    )
    shard: ShardFiles
    rate: float  # share of the documents in the sample

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.shard.name

    def depends_on(self) -> Dependencies:
        """Return the rate and the seed, and the shard's scores, vectors and duplicates."""
        return Dependencies(settings=[self.rate, self.settings.seed, self.by_tokens], inputs=inputs_of(self.shard))


def inputs_of(shard: ShardFiles) -> list[str]:
    """Return what identifies all that a selection reads of a shard."""
    return [shard.name, shard.scores.fingerprint, shard.embeddings.fingerprint, shard.duplicates.fingerprint]


@stage_task
def draw_sample(job: SampleJob) -> None:
    """Write a shard's sums and its documents of the sample."""
    import torch

    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.selection.corpus.documents import Documents, prefixed
    from fineweb_mask.models.selection.corpus.survey import Survey, sampled

    device = torch.device(choose_device(job.settings.device))
    columns = read_columns(job.workspace, job.shard)
    surveys, chosen = [], []
    for _, part in read_parts(job.workspace, job.shard, columns, job.settings.seed, by_tokens=job.by_tokens):
        with gpu_slot(str(device)):
            surveys.append(Survey.of(part, device))
        chosen.append(sampled(part, job.rate))
    arrays: dict[str, Any] = {}
    if surveys:
        arrays = {
            **prefixed("survey", Survey.total(surveys).arrays()),
            **prefixed("sample", Documents.concatenate(chosen).arrays()),
        }
    write_arrays(job.output, job.key, arrays, {})


class LearnJob(_CorpusJob):
    """Learn the first rule, or gather a pass and learn the next one."""

    stage: ClassVar[Stage] = Stage(
        "learn_rule", version=1, label="select", folders=("rules",), interim=True, run_with=("select",)
    )
    number: int  # 0 for the first
    samples: list[StageFile]
    before: StageFile | None = None  # the job's output before this one
    tallies: tuple[StageFile, ...] = ()  # of the rule in it

    @property
    def name(self) -> str:
        """The number of the job."""
        return f"rule-{self.number}"

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.settings.device != "cpu"

    def depends_on(self) -> Dependencies:
        """Return the settings, the sample, and what came before."""
        settings = self.settings.model_dump(exclude=NOT_LEARNED)
        before = None if self.before is None else self.before.fingerprint
        files = [[file.fingerprint for file in group] for group in (self.samples, self.tallies)]
        return Dependencies(settings=[settings, self.number, self.settings.passes], inputs=[files, before])


@stage_task
def learn_rule(job: LearnJob) -> None:
    """Write the next rule, and the best one so far.

    The details say how many passes were gathered (`passes`), and what each reached.
    """
    import torch

    from fineweb_mask.models.forward.device import choose_device

    device = torch.device(choose_device(job.settings.device))
    with gpu_slot(str(device)):
        if job.before is None:
            _learn_first(job, device)
        else:
            _gather(job, job.before, device)


def _learn_first(job: LearnJob, device: "torch.device") -> None:
    from fineweb_mask.models.selection.corpus.documents import prefixed

    problem = _problem(job, device)
    learned = problem.learn()
    details = {
        "passes": 0,
        "budget": problem.budget,
        "documents": problem.documents,
        "sample": len(problem.sample.quality),
        "random_objective": problem.random_objective,
        "ranges": asdict(problem.ranges),
        "steps": [],
    }
    write_arrays(job.output, job.key, prefixed("next", learned.arrays()), details)


def _gather(job: LearnJob, before: StageFile, device: "torch.device") -> None:
    from fineweb_mask.models.selection.corpus.documents import prefixed, without_prefix
    from fineweb_mask.models.selection.corpus.passes import Tally, conclude, find_threshold, margin_at
    from fineweb_mask.models.selection.corpus.sample import Learned

    arrays = read_arrays(job.workspace.resolve(before))
    learned = Learned.of_arrays(without_prefix("next", arrays), device)
    best: Arrays = prefixed("best", without_prefix("best", arrays))
    details = dict(before.details)

    def tallies() -> Iterator[Tally]:
        for file in track("parts", list(job.tallies)):
            if arrays := read_arrays(job.workspace.resolve(file)):
                yield Tally.of_arrays(arrays)

    rankings = [tally.ranking for tally in tallies()]
    threshold = find_threshold(learned.margin, rankings, details["budget"])
    if threshold is None:
        again = replace(learned, margin=margin_at(learned.margin, rankings, details["budget"]))
        write_arrays(job.output, job.key, {**best, **prefixed("next", again.arrays())}, details)
        return
    outcome = conclude(learned.rule, threshold, tallies(), device)
    details["passes"] += 1
    details["steps"] = [*details["steps"], {"objective": outcome.objective, "upper_bound": outcome.upper_bound}]
    if outcome.objective >= max(step["objective"] for step in details["steps"]):
        best = prefixed("best", outcome.rule.arrays())
        terms = _ranges(details).terms(outcome.raw, job.settings.metric_weights)
        details |= {"objective": outcome.objective, "terms": terms}
    following: Arrays = {}
    if details["passes"] < job.settings.passes:
        problem = _problem(job, device, _ranges(details), learned.rule.frame)
        following = prefixed("next", problem.corrected(learned, outcome).arrays())
    write_arrays(job.output, job.key, {**best, **following}, details)


def _problem(
    job: LearnJob, device: "torch.device", ranges: "Ranges | None" = None, frame: "Frame | None" = None
) -> "SampleProblem":
    """Read the sample; ranges and frame are those of the first rule."""
    from fineweb_mask.models.selection.corpus.documents import Documents, without_prefix
    from fineweb_mask.models.selection.corpus.sample import SampleProblem
    from fineweb_mask.models.selection.corpus.survey import Survey

    files = track("parts of the sample", job.samples)
    found = [arrays for file in files if (arrays := read_arrays(job.workspace.resolve(file)))]
    survey = Survey.total([Survey.of_arrays(without_prefix("survey", arrays)) for arrays in found])
    sample = Documents.concatenate([Documents.of_arrays(without_prefix("sample", arrays)) for arrays in found])
    return SampleProblem(sample, survey, job.settings, job.settings.directions, device, ranges=ranges, frame=frame)


def _ranges(details: dict[str, Any]) -> "Ranges":
    """Return the ranges that `asdict` made details of."""
    from fineweb_mask.models.selection.ranges import Ranges

    return Ranges.of_details(details["ranges"])


class MeasureJob(_CorpusJob):
    """Measure what a rule selects from one shard."""

    stage: ClassVar[Stage] = Stage(
        "measure", version=1, label="select", folders=("passes",), interim=True, run_with=("select",)
    )
    shard: ShardFiles
    rule: StageFile  # the output of a `LearnJob`

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.shard.name

    @property
    def uses_gpu(self) -> bool:
        """Whether a GPU makes the job faster."""
        return self.settings.device != "cpu"

    def depends_on(self) -> Dependencies:
        """Return the rule, the seed, and the shard's scores, vectors and duplicates."""
        settings = [self.settings.seed, self.by_tokens]
        return Dependencies(settings=settings, inputs=[self.rule.fingerprint, *inputs_of(self.shard)])


@stage_task
def measure(job: MeasureJob) -> None:
    """Write a shard's sums, and its documents near the threshold."""
    import torch

    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.selection.corpus.documents import without_prefix
    from fineweb_mask.models.selection.corpus.passes import Tally
    from fineweb_mask.models.selection.corpus.sample import Learned

    device = torch.device(choose_device(job.settings.device))
    arrays = read_arrays(job.workspace.resolve(job.rule))
    learned = Learned.of_arrays(without_prefix("next", arrays), device)
    columns = read_columns(job.workspace, job.shard)
    tallies = []
    for _, part in read_parts(job.workspace, job.shard, columns, job.settings.seed, by_tokens=job.by_tokens):
        with gpu_slot(str(device)):
            tallies.append(Tally.of(learned.rule, learned.margin, part, device))
    write_arrays(job.output, job.key, Tally.total(tallies).arrays() if tallies else {}, {})


class KeepRuleJob(ProductJob):
    """Keep the best rule, for this corpus and for shards that are added to it; `force` replaces it."""

    stage: ClassVar[Stage] = Stage("keep_rule", version=1, label="select", product=True, run_with=("select",))
    name: ClassVar[str] = "selection-rule"
    settings: PipelineSelectionSettings
    models: list[str]  # what identifies the models and statistics that scores and vectors are made with
    learned: StageFile | None = None  # the output of the last `LearnJob`: needed to build the output, not to find it

    @property
    def shard_names(self) -> list[str]:
        """No shard: a later job selects from it."""
        return []

    @property
    def manifest_path(self) -> Path:
        """The manifest of the rule."""
        return self.workspace.fitted / f"{self.name}.{self.key.tag}.json"

    def paths(self) -> list[Path]:
        """Return the manifest and the rule."""
        manifest = read_manifest(self.manifest_path)
        files = [] if manifest is None else sorted(manifest.files)
        return [self.manifest_path, *(self.workspace.fitted / name for name in files)]

    def current(self, listing: Listing | None = None) -> StageFile | None:
        """Return a reference to the rule if it is whole and agrees with the job's key, else None."""
        manifest, kept = read_manifest(self.manifest_path), super().current(listing)
        if manifest is None or kept is None:
            return None
        [name] = manifest.files
        return kept.model_copy(update={"path": f"fitted/{name}"})

    def depends_on(self) -> Dependencies:
        """Return the settings and the models."""
        settings = self.settings.model_dump(exclude={"device", "block_size", "blocks", "block_budget"})
        return Dependencies(settings=settings, inputs=self.models)


@stage_task
def keep_rule(job: KeepRuleJob) -> None:
    """Write the rule, under a name that tells what it was learned from, and then its manifest."""
    assert job.learned is not None  # noqa: S101 - it is there before the job is added
    arrays = read_arrays(job.workspace.resolve(job.learned))
    key = job.key.model_copy(update={"inputs": job.learned.fingerprint})
    path = job.workspace.fitted / f"{job.name}.{key.tag}.parquet"
    write_arrays(path, key, {name: array for name, array in arrays.items() if name.startswith("best/")}, {})
    with job.workspace.alone():
        if job.force or job.current() is None:  # another run may have kept one meanwhile
            write_manifest(job.manifest_path, job.key, [path], job.learned.details)
