"""Learn a threshold policy for all shards of a corpus, from a random sample and from passes over all documents.

A policy gives each document its marginal gain, and the threshold from which on documents are selected
(models/selection/corpus). It is kept in `fitted/` while the corpus grows, as an encoder is: new shards are selected
from by the same policy, until a refit.

Every pass is one job for each shard, `MeasureJob`, and one that gathers them, `LearnJob`, which also learns the next
policy. Where the documents at the threshold are not among those that a pass kept, the pass is made again around it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.pipeline import DIRECTIONS
from fineweb_mask.tasks.inference.gpu import gpu_slot
from fineweb_mask.tasks.selection.inputs.shard_documents import read_columns, read_parts
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, ShardJob, Stage, stage_task
from fineweb_mask.tasks.workspace.listing import Listing
from fineweb_mask.tasks.workspace.manifest import read_manifest, write_manifest
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.stage_parquet import read_arrays, write_arrays
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    import torch

    from fineweb_mask.models.selection.corpus.documents import Arrays
    from fineweb_mask.models.selection.corpus.passes import Ranking, Tally
    from fineweb_mask.models.selection.corpus.rule import Frame
    from fineweb_mask.models.selection.corpus.sample import Learned, SampleProblem
    from fineweb_mask.models.selection.problem.normalisation import Ranges

NOT_LEARNED = {"device", "block_size", "blocks", "block_budget", "passes", "sample", "scope"}
"""Settings on which what is learned on a sample does not depend."""


PolicyPart = Literal["next", "best"]
"""Which policy of a file: the one that a pass is made with, or the best so far, which is kept."""


class CorpusJob(ShardJob):
    """A job whose output is read while a policy is learned, and not after."""

    settings: PipelineSelectionSettings

    @property
    def shard_names(self) -> list[str]:
        """No shard: a later job selects from it."""
        return []

    @property
    def read_with(self) -> list[Any]:
        """The settings on which depends what is read of a shard's documents."""
        groups = self.settings.groups
        return [self.settings.seed, self.settings.budget_by, *([] if groups is None else [groups.column])]


class SampleJob(CorpusJob):
    """Draw a shard's part of the sample, and sum over all its documents."""

    stage: ClassVar[Stage] = Stage(
        "sample", version=2, label="select", folders=("samples",), interim=True, run_with=("select",)
    )
    shard: ShardFiles
    rate: float  # share of the documents in the sample

    @property
    def name(self) -> str:
        """The shard's name."""
        return self.shard.name

    def depends_on(self) -> Dependencies:
        """Return the rate and the seed, and the shard's scores, vectors and duplicates."""
        return Dependencies(settings=[self.rate, *self.read_with], inputs=inputs_of(self.shard))


def inputs_of(shard: ShardFiles) -> list[str]:
    """Return what identifies all that a selection reads of a shard."""
    return [shard.name, shard.scores.fingerprint, shard.embeddings.fingerprint, shard.duplicates.fingerprint]


@stage_task
def draw_sample(job: SampleJob) -> None:
    """Write a shard's sums and its documents of the sample."""
    import torch

    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.selection.corpus.documents import CorpusStatistics, Documents, prefixed, sampled

    device = torch.device(choose_device(job.settings.device))
    columns = read_columns(job.workspace, job.shard)
    surveys, chosen = [], []
    for _, part in read_parts(job.workspace, job.shard, columns, job.settings):
        with gpu_slot(str(device)):
            surveys.append(CorpusStatistics.of(part, device))
        chosen.append(sampled(part, job.rate))
    arrays: dict[str, Any] = {}
    if surveys:
        arrays = {
            **prefixed("survey", CorpusStatistics.total(surveys).arrays()),
            **prefixed("sample", Documents.concatenate(chosen).arrays()),
        }
    write_arrays(job.output, job.key, arrays, {})


class LearnJob(CorpusJob):
    """Learn the first policy, or gather a pass and learn the next one."""

    stage: ClassVar[Stage] = Stage(
        "learn_rule", version=3, label="select", folders=("rules",), interim=True, run_with=("select",)
    )
    number: int  # 0 for the first
    samples: list[StageFile]
    before: StageFile | None = None  # the job's output before this one
    tallies: tuple[StageFile, ...] = ()  # of the policy in it
    penalised: tuple[StageFile, ...] = ()  # the same of the candidates, less the penalties of near-duplicates

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
        settings = self.settings.digested(exclude=NOT_LEARNED | self.settings.not_used)
        before = None if self.before is None else self.before.fingerprint
        files = [[file.fingerprint for file in group] for group in (self.samples, self.tallies, self.penalised)]
        return Dependencies(settings=[settings, self.number, self.settings.passes], inputs=[files, before])


@stage_task
def learn_policy(job: LearnJob) -> None:
    """Write the next policy, and the best one so far.

    The details say how many passes were gathered (`passes`), what each reached, how many cells candidates are in
    (`cells`), and whether only the candidates are to be measured `again`, because the threshold was not found among
    them. `best_...` is of the best policy, not of the next.
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
    problem = _problem(job, device)
    details = {
        "passes": 0,
        "budget": problem.budget,
        "budgets": problem.budgets,
        "asked": problem.asked,
        "documents": problem.documents,
        "sample": len(problem.sample.quality),
        "random_objective": problem.random_objective,
        "ranges": asdict(problem.ranges),
        "spare": problem.spare,
        "steps": [],
    }
    _write(job, {}, problem.learn(), details)


def _write(job: LearnJob, best: "Arrays", learned: "Learned | None", details: dict[str, Any]) -> None:
    """Write the best policy so far, and the next one if there is any."""
    from fineweb_mask.models.selection.corpus.documents import prefixed

    following: Arrays = {}
    if learned is not None:
        following = prefixed("next", learned.arrays())
        details = details | {"cells": 0 if learned.search is None else len(learned.search.centres)}
    write_arrays(job.output, job.key, {**best, **following}, details)


def _gather(job: LearnJob, before: StageFile, device: "torch.device") -> None:
    from fineweb_mask.models.selection.corpus.documents import prefixed, without_prefix
    from fineweb_mask.models.selection.corpus.passes import Bound, conclude, find_thresholds, margins_at

    arrays = read_arrays(job.workspace.resolve(before))
    learned = read_learned(job.workspace, before, "next", device)
    best: Arrays = prefixed("best", without_prefix("best", arrays))
    details, search = before.details | {"again": False}, learned.search
    measured_with = details.pop("measured_with", before.fingerprint)
    budgets = details["budgets"]
    rankings = _rankings(job, job.tallies)
    thresholds = find_thresholds(learned.margins, rankings, budgets)
    found = {name: place for name, place in thresholds.items() if place is not None}
    if len(found) < len(thresholds):
        margins = margins_at(learned.margins, thresholds, rankings, budgets)
        _write(job, best, replace(learned, margins=margins), details)
        return
    outcome = conclude(learned.rule, found, _tallies(job, job.tallies), budgets, device)
    bound = outcome.bound
    if search is not None:
        rankings = _rankings(job, job.penalised)
        thresholds = find_thresholds(search.margins, rankings, budgets)
        found = {name: place for name, place in thresholds.items() if place is not None}
        if len(found) < len(thresholds):
            search = search._replace(margins=margins_at(search.margins, thresholds, rankings, budgets))
            again = details | {"again": True, "measured_with": measured_with}
            _write(job, best, replace(learned, search=search), again)
            return
        costs = {name: sum(int(one[name].counts.sum()) for one in rankings) for name in budgets}
        if not search.is_wide_enough(found, costs, budgets):
            details["spare"] *= 2
            problem = _problem(job, device, details, learned.rule.frame)
            search = problem.search(learned.rule, learned.margins, details["spare"])
            _write(job, best, replace(learned, search=search), details)
            return
        outcome = conclude(learned.rule, found, _tallies(job, job.penalised), budgets, device)
    details["passes"] += 1
    step = {"objective": outcome.objective, "upper_bound": bound.at(outcome.bound.used), "bound": bound._asdict()}
    details["steps"] = [*details["steps"], step]
    if outcome.objective >= max(step["objective"] for step in details["steps"]):
        best = prefixed("best", replace(learned, rule=outcome.rule).arrays())
        terms = _ranges(details).terms(outcome.raw, job.settings.metric_weights)
        if search is not None:
            terms["near_duplicate_cost"] = outcome.near_duplicate_cost
        details |= {"objective": outcome.objective, "terms": terms, "best_cells": before.details["cells"]}
        details |= {"best_measured_with": measured_with, "used": outcome.bound.used}
    details["upper_bound"] = min(Bound(**step["bound"]).at(details["used"]) for step in details["steps"])
    following = None
    if details["passes"] < job.settings.passes:
        following = _problem(job, device, details, learned.rule.frame).corrected(learned, outcome)
    _write(job, best, following, details)


def _rankings(job: LearnJob, files: Sequence[StageFile]) -> "list[dict[str, Ranking]]":
    return [{name: tally.ranking for name, tally in one.items()} for one in _tallies(job, files)]


def _tallies(job: LearnJob, files: Sequence[StageFile]) -> "Iterator[dict[str, Tally]]":
    """Yield the tallies of every part, by group."""
    from fineweb_mask.models.selection.corpus.documents import without_prefix
    from fineweb_mask.models.selection.corpus.passes import tallies_of

    for file in track("parts", list(files)):
        if arrays := without_prefix("tally", read_arrays(job.workspace.root / file.path, "tally")):
            yield tallies_of(arrays)


def read_learned(workspace: Workspace, file: StageFile, part: PolicyPart, device: "torch.device") -> "Learned":
    """Read a policy, with what comes with it."""
    from fineweb_mask.models.selection.corpus.documents import without_prefix
    from fineweb_mask.models.selection.corpus.sample import Learned

    return Learned.of_arrays(without_prefix(part, read_arrays(workspace.resolve(file), part)), device)


def _problem(
    job: LearnJob, device: "torch.device", details: dict[str, Any] | None = None, frame: "Frame | None" = None
) -> "SampleProblem":
    """Read the sample; details and frame are those of the policies so far."""
    from fineweb_mask.models.selection.corpus.documents import CorpusStatistics, Documents, without_prefix
    from fineweb_mask.models.selection.corpus.sample import SampleProblem

    files = track("parts of the sample", job.samples)
    found = [arrays for file in files if (arrays := read_arrays(job.workspace.resolve(file)))]
    survey = CorpusStatistics.total([CorpusStatistics.of_arrays(without_prefix("survey", arrays)) for arrays in found])
    sample = Documents.concatenate([Documents.of_arrays(without_prefix("sample", arrays)) for arrays in found])
    known: dict[str, Any] = {} if details is None else {"ranges": _ranges(details), "spare": details["spare"]}
    settings = job.settings
    known["groups"] = settings.groups
    return SampleProblem(sample, survey, settings, DIRECTIONS, device, frame=frame, **known)


def _ranges(details: dict[str, Any]) -> "Ranges":
    """Return the ranges that `asdict` made details of."""
    from fineweb_mask.models.selection.problem.normalisation import Ranges

    return Ranges.of_details(details["ranges"])


class KeepPolicyJob(ProductJob):
    """Keep the best policy, for this corpus and for shards that are added to it; `force` replaces it."""

    stage: ClassVar[Stage] = Stage("keep_rule", version=2, label="select", product=True, run_with=("select",))
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
        """The manifest of the policy."""
        return self.workspace.fitted / f"{self.name}.{self.key.tag}.json"

    def paths(self) -> list[Path]:
        """Return the manifest and the policy."""
        manifest = read_manifest(self.manifest_path)
        files = [] if manifest is None else sorted(manifest.files)
        return [self.manifest_path, *(self.workspace.fitted / name for name in files)]

    def current(self, listing: Listing | None = None) -> StageFile | None:
        """Return a reference to the policy if it is whole and agrees with the job's key, else None."""
        manifest, kept = read_manifest(self.manifest_path), super().current(listing)
        if manifest is None or kept is None:
            return None
        [name] = manifest.files
        return kept.model_copy(update={"path": f"fitted/{name}"})

    def depends_on(self) -> Dependencies:
        """Return the settings and the models."""
        settings = self.settings.digested(
            exclude={"device", "block_size", "blocks", "block_budget"} | self.settings.not_used
        )
        return Dependencies(settings=settings, inputs=self.models)


@stage_task
def keep_policy(job: KeepPolicyJob) -> None:
    """Write the policy, under a name that tells what it was learned from, and then its manifest."""
    assert job.learned is not None  # noqa: S101 - it is there before the job is added
    arrays = read_arrays(job.workspace.resolve(job.learned))
    key = job.key.model_copy(update={"inputs": job.learned.fingerprint})
    path = job.workspace.fitted / f"{job.name}.{key.tag}.parquet"
    write_arrays(path, key, {name: array for name, array in arrays.items() if name.startswith("best/")}, {})
    with job.workspace.alone():
        if job.force or job.current() is None:  # another run may have kept one meanwhile
            write_manifest(job.manifest_path, job.key, [path], job.learned.details)
