"""Search the settings of a selection by what it teaches a model of n-grams, and write what was tried on a page.

Half of every held-out set decides between trials. The other half, which the search never saw, is what the best trial
is shown on, beside the recipe's own settings, random documents, those of the highest quality and random ones of the
same lengths.
"""

import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selection import METRICS
from fineweb_mask.models.witness.halves import Halves
from fineweb_mask.models.witness.search import next_point, spread
from fineweb_mask.models.witness.witness import check_tokens, witness
from fineweb_mask.tasks.inference.gpu import gpu_slot, torch_device
from fineweb_mask.tasks.reporting.page import Column, Page, PageJob, Section, Table, Tile
from fineweb_mask.tasks.reporting.samples import vectors_at
from fineweb_mask.tasks.selection.blocks import Block
from fineweb_mask.tasks.selection.groups import select_groups
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.witness.documents import GROUPS, POOL, Corpus, read_corpus
from fineweb_mask.tasks.witness.job import figures
from fineweb_mask.tasks.witness.section import teaching_section, teaching_sentence
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import ShardFiles

if TYPE_CHECKING:
    from fineweb_mask.models.selection.block import BlockSolver

MOST_LAMB = 0.95
MOST_TOKENS = 500_000
"""Of a trial's selection that are learned from."""
SHARE_RANGE = 4.0
"""How many times its own share of the corpus a group is given at most, or the inverse at least."""
MOST_GROUPS = 12
FIRST_TRIALS = 4  # for each dimension that is searched
TUNED, OWN = "tuned", "recipe"


class Trial(BaseModel):
    """Settings that were tried."""

    lamb: float
    metrics: dict[str, float]
    weights: dict[str, float] = Field(default_factory=dict)  # by score; empty where they are not searched
    shares: dict[str, float] = Field(default_factory=dict)  # by group; empty where they are not searched


class TuneJob(PageJob):
    """Search the settings of a selection; half of the held-out documents decides, the other half shows the gain."""

    stage: ClassVar[Stage] = Stage("tune", version=3, folders=("tune",))
    shards: list[ShardFiles]
    settings: PipelineSelectionSettings  # of the recipe
    weights: dict[str, float]  # of the scores that are weighed; fewer than two are left as they are
    targets: dict[str, list[SourceShard]]
    by: str | None = None  # column of the groups whose shares are searched
    trials: int
    minutes: float

    def depends_on(self) -> Dependencies:
        """Return the settings, and the fingerprints of the corpus and of the targets."""
        settings = [self.settings.digested(exclude={"device"}), self.weights, self.by, self.trials, self.minutes]
        files = [(shard.documents, shard.scores, shard.embeddings, shard.duplicates) for shard in self.shards]
        return Dependencies(settings=settings, inputs=[files, self.targets])

    def read(self, most_tokens: int) -> tuple[Corpus, Halves]:
        """Read a sample of the corpus, and halve what is held out of it."""
        corpus = read_corpus(
            self.workspace,
            self.shards,
            {},
            self.targets,
            by=self.by,
            threshold=self.settings.near_duplicates.threshold,
            most_tokens=most_tokens,
            select_ratio=self.settings.select_ratio,
        )
        names = [*self.targets] or [name for name in (POOL, GROUPS) if name in corpus.held_out]
        of_pool = int(corpus.pool.lengths.sum())
        tokens = min(most_tokens, int(0.95 * self.settings.select_ratio * of_pool))
        check_tokens(tokens, of_pool, "the recipe's selection")
        common = {"vocabulary": corpus.vocabulary, "seed": self.settings.seed}
        return corpus, Halves(corpus.pool, corpus.held_out, names, tokens=tokens, **common)

    def final(self, corpus: Corpus, halves: Halves, arms: Mapping[str, NDArray[np.int64]]) -> dict[str, Any]:
        """Return what selections teach of the documents that did not decide."""
        found = witness(
            corpus.pool,
            arms,
            halves.final,
            vocabulary=corpus.vocabulary,
            quality=corpus.quality,
            most_tokens=halves.tokens,
            seed=self.settings.seed + 1,
        )
        return figures(found, corpus.remarks)


@stage_task
@same_threads()
def tune(job: TuneJob) -> None:
    """Search, and write the page; `details` hold the best settings and the final figures."""
    started = time.monotonic()
    corpus, halves = job.read(MOST_TOKENS)
    search = _Search(job, corpus, halves)
    tried, losses = search.run(job.trials, started + 60 * job.minutes)
    best = tried[int(np.argmin(losses))]
    own = Trial(lamb=job.settings.lamb, metrics=job.settings.metric_weights)
    details = {
        "rows": len(tried),
        "best": best.model_dump(),
        "sets": halves.names,
        "trials": [one.model_dump() | {"loss": loss} for one, loss in zip(tried, losses, strict=True)],
        "seconds_taken": round(time.monotonic() - started, 1),
        "final": job.final(corpus, halves, {TUNED: search.select(best), OWN: search.select(own)}),
    }
    job.write(_page(details), details)


class _Search:
    """The trials of one search."""

    def __init__(self, job: TuneJob, corpus: Corpus, halves: Halves) -> None:
        self._job, self._corpus, self._halves = job, corpus, halves
        self._tokens = corpus.pool.lengths
        self._vectors = vectors_at(job.workspace, job.shards, corpus.places)
        several = len(job.weights) > 1
        self._scores = _standard_scores(job, corpus) if several else np.empty((len(corpus.places), 0))
        self._groups = _shares(corpus) if job.by is not None else {}
        in_parts = job.settings.scope == "global"  # which takes metrics of sums
        self._metrics = [name for name, entry in METRICS.items() if entry.moment is not None or not in_parts]

    @property
    def dimensions(self) -> int:
        """How many numbers are searched."""
        return 1 + len(self._metrics) + int(self._scores.shape[1]) + len(self._groups)

    def run(self, trials: int, until: float) -> tuple[list[Trial], list[float]]:
        """Try the recipe's own settings first, then so many others or until a time; return trials and losses."""
        tried = [Trial(lamb=self._job.settings.lamb, metrics=self._job.settings.metric_weights)]
        losses, points = [self._halves.loss(self.select(tried[0]))], list[NDArray[np.float64]]()
        first = spread(self.dimensions, self._job.settings.seed, FIRST_TRIALS * self.dimensions)
        for number in track("trials", range(trials - 1), part=(0, 1)):
            if time.monotonic() > until and number:
                break
            points.append(first[number] if number < len(first) else next_point(points, losses[1:], number))
            tried.append(self._trial(points[-1]))
            losses.append(self._halves.loss(self.select(tried[-1])))
        return tried, losses

    def _trial(self, point: NDArray[np.float64]) -> Trial:
        """Return the settings of a point of the unit cube."""
        ends = np.cumsum([1, len(self._metrics), self._scores.shape[1]])
        [lamb], metrics, scores, groups = np.split(point, ends)
        own = np.array(list(self._groups.values())) * SHARE_RANGE ** (2 * groups - 1)
        return Trial(
            lamb=round(float(MOST_LAMB * lamb), 3),
            metrics={name: weight for name, weight in _simplex(self._metrics, metrics).items() if weight >= 0.05},
            weights=_simplex([*self._job.weights][: len(scores)], scores),
            shares=dict(zip(self._groups, (own / own.sum()).tolist(), strict=True)),
        )

    def select(self, trial: Trial) -> NDArray[np.int64]:
        """Return the places of the documents that a trial selects."""
        settings = changed(self._job.settings, trial)
        quality = self._corpus.quality
        if trial.weights:
            quality = np.asarray(self._scores @ list(trial.weights.values()), dtype=np.float32)
        if settings.groups is not None:
            rows, groups = np.arange(len(quality)), self._corpus.groups
            block = Block("tune", rows, self._vectors, quality, self._tokens, groups=groups)
            found = select_groups(settings, block, None)
            chosen = [one.block.rows[one.selection.indices] for one in found if one.selection is not None]
            return np.sort(np.concatenate(chosen))
        import torch

        from fineweb_mask.models.selection.solvers.problem import History

        with gpu_slot(self._block.rows.device):
            solver = self._block.with_weights(torch.from_numpy(quality).to(self._block.rows.device), settings)
            _, solution = solver.solve(History(), settings.lamb)
        return solution.mask.nonzero()[:, 0].cpu().numpy()

    @cached_property
    def _block(self) -> "BlockSolver":  # of all trials: what does not depend on weights is found once
        from fineweb_mask.models.selection.block import checked_block

        every = Trial(lamb=0.5, metrics=dict.fromkeys(self._metrics, 1.0))
        settings = changed(self._job.settings, every)
        device = torch_device(settings.device)
        return checked_block(self._vectors, self._corpus.quality, settings, device=device, tokens=self._tokens)


def _shares(corpus: Corpus) -> dict[str, float]:
    """Return each group's share of the documents; nothing where there are too few groups, or too many to search."""
    names, counts = np.unique(corpus.groups, return_counts=True)
    if not 2 <= len(names) <= MOST_GROUPS:
        return {}
    return dict(zip(names.tolist(), (counts / counts.sum()).tolist(), strict=True))


def _simplex(names: Sequence[str], point: NDArray[np.float64]) -> dict[str, float]:
    """Return weights that add up to 1, uniform among those if the point is uniform in the cube."""
    drawn = -np.log(np.clip(point, 1e-9, 1 - 1e-9))
    return dict(zip(names, np.round(drawn / drawn.sum(), 3).tolist(), strict=True)) if len(names) else {}


def _standard_scores(job: TuneJob, corpus: Corpus) -> NDArray[np.float64]:
    """Return the scores that are weighed, (n, scores), with mean 0 and deviation 1 each; constant ones are 0."""
    parts = [np.empty((0, len(job.weights)))]
    for index, places in groupby(corpus.places, key=lambda place: place.shard):
        table = read_table(job.workspace.resolve(job.shards[index].scores), columns=list(job.weights))
        rows = table.take(pa.array([place.row for place in places]))
        parts.append(np.stack([rows[name].to_numpy().astype(np.float64) for name in job.weights], axis=1))
    scores = np.concatenate(parts)
    return np.asarray((scores - scores.mean(0)) / np.maximum(scores.std(0), 1e-12))


def changed(settings: PipelineSelectionSettings, trial: Trial) -> PipelineSelectionSettings:
    """Return the settings with those of a trial; budgets are in tokens, so that all trials read as many."""
    content = settings.model_dump(exclude_unset=True) | {"lamb": trial.lamb, "metrics": trial.metrics}
    content |= {"solver": "mean_field", "budget": None, "budget_by": "tokens"}
    if trial.shares:
        total = sum(trial.shares.values())
        shares = {name: share / total for name, share in trial.shares.items()}
        content["groups"] = (content.get("groups") or {}) | {"shares": shares}
    return PipelineSelectionSettings.model_validate(content)


def _page(details: Mapping[str, Any]) -> Page:
    best, final, shown = details["best"], details["final"], details["sets"]
    trials = sorted(details["trials"], key=lambda one: one["loss"])
    own = details["trials"][0]
    rows = [[_described(one) + (" (recipe)" if one is own else ""), 1 - one["loss"]] for one in trials]
    note = (
        f"{len(trials)} trials in {details['seconds_taken']:,.0f} s, on the deciding half of {', '.join(shown)}: their "
        "best is partly luck, so that only the figures above, on the other half, say what was gained."
    )
    found = f"Best of {len(trials)} trials: {_described(best)}."
    lead = " ".join([found, *(f"On {name}: {teaching_sentence(final, TUNED, name)}" for name in shown)])
    tiles = [
        Tile(str(len(trials)), "trials"),
        Tile(f"{best['lamb']:g}", "lamb"),
        Tile(f"{final['tokens']:,}", "tokens"),
    ]
    columns = [Column("settings"), Column("predicted better than after random documents", "share")]
    tried = Section("What was tried", tables=[Table("Trials", columns, rows[:200], note, wide=True)])
    title = "Settings tuned by what a language model learns"
    return Page(title, lead, tiles, [teaching_section(final), tried], metrics=dict(details))


def _described(trial: Mapping[str, Any]) -> str:
    parts = [f"lamb {trial['lamb']:g}", " + ".join(f"{weight:g} {name}" for name, weight in trial["metrics"].items())]
    searched = [(name, trial[name]) for name in ("weights", "shares") if trial[name]]
    parts += [f"{name} " + ", ".join(f"{key} {value:.2g}" for key, value in of.items()) for name, of in searched]
    return "; ".join(parts)
