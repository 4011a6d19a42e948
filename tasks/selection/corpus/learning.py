"""Learn a threshold policy for all shards of a corpus, from a random sample and from passes over all documents.

A policy gives each document its marginal gain, and the threshold from which on documents are selected
(models/selection/corpus). It is kept in `fitted/` while the corpus grows, as an encoder is: new shards are selected
from by the same policy, until a refit.

Every pass is one job for each shard, `MeasureJob`, and one that gathers them, `LearnJob`, which also learns the next
policy. Where the documents at the threshold are not among those that a pass kept, the pass is made again around it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.selection.corpus.documents import Documents, flat, made, nested, sampled
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selection import DIRECTIONS
from fineweb_mask.tasks.inference.gpu import gpu_slot, torch_device
from fineweb_mask.tasks.selection.blocks import InterimJob, inputs_of
from fineweb_mask.tasks.selection.inputs.shard_documents import read_columns, read_parts
from fineweb_mask.tasks.workspace.job import Dependencies, FittedJob, Stage, stage_task
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays, write_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    import torch

    from fineweb_mask.models.selection.corpus.passes import Ranking, Tally
    from fineweb_mask.models.selection.corpus.rule import Frame
    from fineweb_mask.models.selection.corpus.sample import Learned, SampleProblem

NOT_LEARNED = {"device", "block_size", "passes", "sample", "scope"}
"""Settings on which what is learned on a sample does not depend."""


PolicyPart = Literal["next", "best"]
"""Which policy of a file: the one that a pass is made with, or the best so far, which is kept."""


class CorpusJob(InterimJob):
    """A job whose output is read while a policy is learned, and not after."""

    @property
    def read_with(self) -> list[Any]:
        """The settings on which depends what is read of a shard's documents."""
        return [self.settings.seed, self.settings.budget_by]


class SampleJob(CorpusJob):
    """Draw a shard's part of the sample, and sum over all its documents."""

    stage: ClassVar[Stage] = Stage("sample", version=4, label="select", folders=("samples",), interim=True)
    uses_gpu: ClassVar[bool] = False
    shard: ShardFiles
    rate: float  # share of the documents in the sample

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.shard.name

    def depends_on(self) -> Dependencies:
        """Return the rate and the seed, and the shard's scores, vectors and duplicates."""
        return Dependencies(settings=[self.rate, *self.read_with], inputs=inputs_of(self.shard))


@stage_task
@same_threads()
def draw_sample(job: SampleJob) -> None:
    """Write a shard's sums and its documents of the sample."""
    from fineweb_mask.models.selection.corpus.sample import CorpusStatistics

    device = torch_device(job.settings.device)
    columns = read_columns(job.workspace, job.shard)
    surveys, chosen = [], []
    for _, part in read_parts(job.workspace, job.shard, columns, job.settings):
        with gpu_slot(device):
            surveys.append(CorpusStatistics.of(part, device))
        chosen.append(sampled(part, job.rate))
    tree = {}
    if surveys:
        tree = {"survey": CorpusStatistics.total(surveys), "sample": Documents.concatenate(chosen)}
    write_arrays(job.output, job.key, flat(tree), {})


class LearnJob(CorpusJob):
    """Learn the first policy, or gather a pass and learn the next one."""

    stage: ClassVar[Stage] = Stage("learn_rule", version=7, label="select", folders=("rules",), interim=True)
    number: int  # 0 for the first
    samples: list[StageFile]
    before: StageFile | None = None  # the job's output before this one
    tallies: tuple[StageFile, ...] = ()  # of the policy in it
    penalised: tuple[StageFile, ...] = ()  # the same of the candidates, less the penalties of near-duplicates

    @property
    def name(self) -> str:
        """The number of the job."""
        return f"rule-{self.number}"

    def depends_on(self) -> Dependencies:
        """Return the settings, the sample, and what came before."""
        settings = self.settings.model_dump(exclude=NOT_LEARNED | self.settings.not_used)
        before = None if self.before is None else self.before.fingerprint
        files = [[file.fingerprint for file in group] for group in (self.samples, self.tallies, self.penalised)]
        return Dependencies(settings=[settings, self.number, self.settings.passes], inputs=[files, before])


@stage_task
@same_threads()
def learn_policy(job: LearnJob) -> None:
    """Write the next policy, and the best one so far.

    The details say how many passes were gathered (`passes`), what each reached, how many cells candidates are in
    (`cells`), and whether only the candidates are to be measured `again`, because the threshold was not found among
    them. `best_...` is of the best policy, not of the next.
    """
    device = torch_device(job.settings.device)
    with gpu_slot(device):
        if job.before is None:
            _learn_first(job, device)
        else:
            _gather(job, job.before, device)


def _learn_first(job: LearnJob, device: "torch.device") -> None:
    problem = _problem(job, device)
    details = {
        "passes": 0,
        "budget": problem.budget,
        "documents": problem.documents,
        "sample": len(problem.sample.quality),
        "random_objective": problem.random_objective,
        "ranges": asdict(problem.ranges),
        "spare": problem.spare,
        "steps": [],
    }
    _write(job, {}, problem.learn(), details)


def _write(job: LearnJob, best: object, learned: "Learned | None", details: dict[str, Any]) -> None:
    """Write the best policy so far, and the next one if there is any."""
    if learned is not None:
        details = details | {"cells": 0 if learned.search is None else len(learned.search.centres)}
    tree = {"best": best, "next": {} if learned is None else learned}
    write_arrays(job.output, job.key, flat(tree), details)


def _gather(job: LearnJob, before: StageFile, device: "torch.device") -> None:
    from fineweb_mask.models.selection.corpus.passes import Bound, conclude, find_threshold, margin_at
    from fineweb_mask.models.selection.corpus.sample import Learned
    from fineweb_mask.models.selection.problem.normalisation import Ranges

    tree = nested(read_arrays(job.workspace.resolve(before)))
    learned, best = made(Learned, tree["next"], device), tree.get("best", {})
    details, search = before.details | {"again": False}, learned.search
    measured_with = details.pop("measured_with", before.fingerprint)
    budget, rankings = details["budget"], _rankings(job, job.tallies)
    threshold = find_threshold(learned.margin, rankings, budget)
    if threshold is None:
        _write(job, best, replace(learned, margin=margin_at(learned.margin, rankings, budget)), details)
        return
    outcome = conclude(learned.rule, threshold, _tallies(job, job.tallies), budget, device)
    bound = outcome.bound
    if search is not None:
        rankings = _rankings(job, job.penalised)
        threshold = find_threshold(search.margin, rankings, budget)
        if threshold is None:
            again = details | {"again": True, "measured_with": measured_with}
            search = search._replace(margin=margin_at(search.margin, rankings, budget))
            _write(job, best, replace(learned, search=search), again)
            return
        cost = sum(int(one.counts.sum()) for one in rankings)
        if not search.is_wide_enough(threshold, cost, budget):
            details["spare"] *= 2
            problem = _problem(job, device, details, learned.rule.frame)
            search = problem.search(learned.rule, learned.margin, details["spare"])
            _write(job, best, replace(learned, search=search), details)
            return
        outcome = conclude(learned.rule, threshold, _tallies(job, job.penalised), budget, device)
    details["passes"] += 1
    step = {"objective": outcome.objective, "upper_bound": bound.at(outcome.bound.used), "bound": bound._asdict()}
    details["steps"] = [*details["steps"], step]
    if outcome.objective >= max(step["objective"] for step in details["steps"]):
        best = replace(learned, rule=outcome.rule)
        terms = Ranges.of_details(details["ranges"]).terms(outcome.raw, job.settings.metric_weights)
        if search is not None:
            terms["near_duplicate_cost"] = outcome.near_duplicate_cost
        details |= {"objective": outcome.objective, "terms": terms, "best_cells": before.details["cells"]}
        details |= {"best_measured_with": measured_with, "used": outcome.bound.used}
    details["upper_bound"] = min(Bound(**step["bound"]).at(details["used"]) for step in details["steps"])
    following = None
    if details["passes"] < job.settings.passes:
        following = _problem(job, device, details, learned.rule.frame).corrected(learned, outcome)
    _write(job, best, following, details)


def _rankings(job: LearnJob, files: Sequence[StageFile]) -> "list[Ranking]":
    return [tally.ranking for tally in _tallies(job, files)]


def _tallies(job: LearnJob, files: Sequence[StageFile]) -> "Iterator[Tally]":
    """Yield the tally of every part."""
    from fineweb_mask.models.selection.corpus.passes import Tally

    for file in track("parts", list(files)):
        if tree := nested(read_arrays(job.workspace.root / file.path, "tally")):
            yield made(Tally, tree["tally"])


def read_learned(workspace: Workspace, file: StageFile, part: PolicyPart, device: "torch.device") -> "Learned":
    """Read a policy, with what comes with it."""
    from fineweb_mask.models.selection.corpus.sample import Learned

    found: Learned = made(Learned, nested(read_arrays(workspace.resolve(file), part))[part], device)
    return found


def _problem(
    job: LearnJob, device: "torch.device", details: dict[str, Any] | None = None, frame: "Frame | None" = None
) -> "SampleProblem":
    """Read the sample; details and frame are those of the policies so far."""
    from fineweb_mask.models.selection.corpus.sample import CorpusStatistics, SampleProblem
    from fineweb_mask.models.selection.problem.normalisation import Ranges

    files = track("parts of the sample", job.samples)
    found = [tree for file in files if (tree := nested(read_arrays(job.workspace.resolve(file))))]
    survey = CorpusStatistics.total([made(CorpusStatistics, tree["survey"]) for tree in found])
    sample = Documents.concatenate([made(Documents, tree["sample"]) for tree in found])
    known: dict[str, Any] = {}
    if details is not None:
        known = {"ranges": Ranges.of_details(details["ranges"]), "spare": details["spare"]}
    return SampleProblem(sample, survey, job.settings, DIRECTIONS, device, frame=frame, **known)


class KeepPolicyJob(FittedJob):
    """Keep the best policy, for this corpus and for shards that are added to it; `force` replaces it."""

    stage: ClassVar[Stage] = Stage("keep_rule", version=6, label="select")
    name: ClassVar[str] = "selection-rule"
    shard_names: ClassVar[list[str]] = []  # later jobs select from them
    settings: PipelineSelectionSettings
    models: list[str]  # what identifies the models and statistics that scores and vectors are made with
    learned: StageFile | None = None  # the output of the last `LearnJob`: needed to build the output, not to find it

    def depends_on(self) -> Dependencies:
        """Return the settings and the models."""
        settings = self.settings.model_dump(exclude={"device", "block_size"} | self.settings.not_used)
        return Dependencies(settings=settings, inputs=self.models)


@stage_task
@same_threads()
def keep_policy(job: KeepPolicyJob) -> None:
    """Write the policy, under a name that tells what it was learned from, and then its manifest."""
    assert job.learned is not None  # noqa: S101 - it is there before the job is added
    key = job.key.model_copy(update={"inputs": job.learned.fingerprint})
    path = job.workspace.fitted / f"{job.name}.{key.tag}.parquet"
    write_arrays(path, key, read_arrays(job.workspace.resolve(job.learned), "best"), {})
    job.publish([path], job.learned.details)
