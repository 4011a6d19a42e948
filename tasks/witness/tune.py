"""Search the settings of a selection by what it teaches a model of n-grams, and write what was tried on a page.

Half of every held-out set decides between trials. The other half, which the search never saw, shows the best trial
beside the recipe's own settings, random documents, those of the highest quality and random ones of the same lengths.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import DataError, FinewebMaskError
from fineweb_mask.models.quality.combine import combine_scores, fit_statistics
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.runtime.threads import same_threads
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.selection import METRICS
from fineweb_mask.models.witness.kneser_ney import KneserNey
from fineweb_mask.models.witness.witness import check_tokens, witness
from fineweb_mask.tasks.reporting.page import Column, Page, PageJob, Section, Table, Tile
from fineweb_mask.tasks.reporting.samples import rows_at, vectors_at
from fineweb_mask.tasks.selection.blocks import Block
from fineweb_mask.tasks.selection.groups import select_groups, shares_of, sizes_of
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.witness.documents import POOL, read_corpus
from fineweb_mask.tasks.witness.job import MOST_TOKENS, gains, teaching_section
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import ShardFiles

TUNED, OWN = "tuned", "the recipe's own settings"
RANDOM_DRAWS = 4  # whose mean loss every selection's is a share of
MOST_GROUPS = 12  # whose shares are searched: a quarter of their own to 4 times as much, before they add up to 1


class TuneJob(PageJob):
    """Search the settings of a selection; half of the held-out documents decides, the other half shows the gain."""

    stage: ClassVar[Stage] = Stage("tune", version=8, folders=("tune",))
    shards: list[ShardFiles]
    settings: PipelineSelectionSettings  # of the recipe
    weights: dict[str, tuple[str, float]]  # by key of the recipe, a score and its weight, of those that are summed
    targets: dict[str, list[SourceShard]]
    trials: int

    def depends_on(self) -> Dependencies:
        """Return the settings, and the fingerprints of the corpus and of the targets."""
        files = [(shard.documents, shard.scores, shard.embeddings, shard.duplicates) for shard in self.shards]
        settings = [self.settings.model_dump(exclude={"device"}), self.weights, self.trials]
        return Dependencies(settings=settings, inputs=[files, self.targets])


@stage_task
@same_threads()
def tune(job: TuneJob) -> None:
    """Search, and write the page; `details` hold the best settings by key, the final figures and what they say."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search, study = Search(job), optuna.create_study(sampler=optuna.samplers.TPESampler(seed=job.settings.seed))
    tried: list[tuple[float, dict[str, Any], str]] = [(search.loss({}), {}, "")]
    for _ in track("trials", range(1, job.trials), part=(0, 1)):
        trial, loss, failed = study.ask(), None, ""
        settings = search.suggested(trial.suggest_float)
        try:
            loss = search.loss(settings)
        except FinewebMaskError as error:
            failed = f"failed: {error}"
        study.tell(trial, loss, state=optuna.trial.TrialState.FAIL if failed else None)
        tried.append((np.inf if loss is None else loss, settings, failed))
    tried.sort(key=lambda one: one[0])
    best, final = tried[0][1], search.final(tried[0][1])
    said = [f"best of {len(tried)} trials: {shown(best)}"]
    for name in search.names:
        said.append(f"{name}: how much better documents that the search did not see are predicted than after")
        said += [f"  {line}" for line in gains(final, name)]
    verdicts = {final["sets"][name]["against"][TUNED][OWN]["verdict"] for name in search.names}
    if "better" not in verdicts or "worse" in verdicts:
        said.append(f"keep {OWN}: nothing that was tried is told to be better")
    rows = [[shown(settings), None if failed else 1 - loss, failed] for loss, settings, failed in tried]
    details = {"rows": len(rows), "best": best, "trials": rows, "final": final, "said": said}
    columns = [Column("settings"), Column("better than after random documents", "share"), Column("")]
    note = "On the half that decides, where the best is partly luck: only the figures above say what was gained."
    tried_section = Section("What was tried", tables=[Table("Trials", columns, rows, note)])
    sections = [Section("What was found", said[1:]), teaching_section(final), tried_section]
    tiles = [Tile(f"{len(rows):,}", "trials"), Tile(f"{final['tokens']:,}", "tokens")]
    job.write(Page("Settings tuned by what a model learns", said[0], tiles, sections, metrics=details), details)


class Search:
    """The documents that trials select from, and the half of the held-out ones that judges them."""

    def __init__(self, job: TuneJob) -> None:
        self._own = own = job.settings.model_copy(update={"solver": "mean_field", "budget_by": "tokens"})
        options: dict[str, Any] = {"by": own.groups and own.groups.column, "threshold": own.alike}
        options |= {"most_tokens": MOST_TOKENS, "select_ratio": own.select_ratio}
        self.corpus = corpus = read_corpus(job.workspace, job.shards, {}, job.targets, **options)
        self._weights, at = job.weights if len(job.weights) > 1 else {}, (job.workspace, job.shards, corpus.places)
        self._vectors, self._lengths = vectors_at(*at), corpus.pool.lengths
        names = [name for name, _ in self._weights.values()]
        scores = rows_at(*at, "scores", names)
        self._scores = {name: scores[name].to_numpy() for name in names}
        self._shares = dict[str, float]()
        if own.groups is not None:
            sizes, shares = sizes_of(own, corpus.groups, self._lengths), own.groups.shares
            if isinstance(shares, Mapping):  # the sample may lack a group
                self._own = self._with_shares({name: share for name, share in shares.items() if name in sizes})
            asked = {name: share.asked * sizes[name] for name, share in shares_of(self._own, sizes).items()}
            self._shares = {name: budget / sum(asked.values()) for name, budget in asked.items() if budget}
        self._tokens = min(MOST_TOKENS, int(0.95 * self._lengths[self.select({})].sum()))
        check_tokens(self._tokens, int(self._lengths.sum()), "the recipe's selection")
        self.names = [*job.targets] or [POOL]  # of the sets that decide
        orders = {name: np.random.default_rng(0).permutation(len(one.sizes)) for name, one in corpus.held_out.items()}
        self.deciding = {name: corpus.held_out[name].take(np.sort(orders[name][::2])) for name in self.names}
        in_order = dict.fromkeys([*self.names, *orders])  # what the search is for first
        self.shown = {name: corpus.held_out[name].take(np.sort(orders[name][1::2])) for name in in_order}
        seeds, n = range(own.seed, own.seed + RANDOM_DRAWS), len(self._lengths)
        self._random = np.mean([self._losses(np.random.default_rng(one).permutation(n)) for one in seeds], axis=0)

    def _with_shares(self, shares: Mapping[str, float]) -> PipelineSelectionSettings:
        return self._own.model_copy(
            update={"groups": self._own.groups and self._own.groups.model_copy(update={"shares": shares})}
        )

    def suggested(self, draw: Callable[[str, float, float], float]) -> dict[str, Any]:
        """Return the settings to try next, by their keys in a recipe, of numbers drawn between two others."""
        drawn = {name: round(draw(name, 0.01, 1), 3) for name in METRICS}
        kept = {name: weight for name, weight in drawn.items() if weight > 0.05 * max(drawn.values())}
        found = {"selection.lamb": round(draw("lamb", 0, 0.95), 3), "selection.metrics": kept}
        found |= {key: round(draw(key, *sorted((0.0, 2 * own))), 3) for key, (_, own) in self._weights.items()}
        if 1 < len(self._shares) <= MOST_GROUPS:
            asked = [own * 4 ** draw(f"share {name}", -1, 1) for name, own in self._shares.items()]
            shares = np.diff(np.cumsum(asked / np.sum(asked)).round(6), prepend=0).round(6).tolist()
            found["selection.groups.shares"] = dict(zip(self._shares, shares, strict=True))
        return found | {"selection.solver": "mean_field", "selection.budget_by": "tokens"}

    def select(self, trial: Mapping[str, Any]) -> NDArray[np.int64]:
        """Return the places of the documents that the recipe selects with a trial's settings."""
        quality, settings = self.corpus.quality, self._with_shares(trial.get("selection.groups.shares", self._shares))
        if self._scores:
            weights = {name: trial.get(key, own) for key, (name, own) in self._weights.items()}
            quality = combine_scores(self._scores, weights, fit_statistics(self._scores), "weighted_sum")
        names = {"lamb", "metrics"} & {key.rpartition(".")[2] for key in trial}
        settings = settings.model_copy(update={name: trial[f"selection.{name}"] for name in names})
        rows = np.arange(len(quality))
        groups = None if settings.groups is None else self.corpus.groups
        block = Block("tune", rows, self._vectors, quality, self._lengths, groups=groups)
        found = [one for one in select_groups(settings, block) if one.selection is not None]
        return np.concatenate([one.block.rows[one.selection.indices] for one in found if one.selection is not None])

    def loss(self, trial: Mapping[str, Any]) -> float:
        """Return the loss of what a trial's selection teaches, as a share of random documents' loss, over the sets.

        Raises
        ------
        DataError
            If it has fewer tokens than all selections are read of.
        """
        documents = self.select(trial)
        if (held := int(self._lengths[documents].sum())) < self._tokens:
            raise DataError(
                f"every selection must have {self._tokens:,} tokens, this one has {held:,}: a group has fewer than its "
                "share, or copies are forbidden"
            )
        return float(np.mean(self._losses(np.random.default_rng(0).permutation(documents)) / self._random))

    def _losses(self, documents: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return the loss on every set that decides, in bits per byte."""
        read = self.corpus.pool.take(documents, self._tokens)
        model = KneserNey(*read, vocabulary=self.corpus.vocabulary)
        return np.array([one.bits(model).sum() / one.sizes.sum() for one in self.deciding.values()])

    def final(self, best: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the best trial's selection teaches of the documents that did not decide, beside the others."""
        return witness(
            self.corpus.pool,
            {TUNED: self.select(best), OWN: self.select({})},
            self.shown,
            vocabulary=self.corpus.vocabulary,
            quality=self.corpus.quality,
            most_tokens=self._tokens,
            seed=self._own.seed + 1,
        )


def shown(trial: Mapping[str, Any]) -> str:
    """Return settings by key as options of the command."""
    values = {key: value if isinstance(value, str) else json.dumps(value) for key, value in trial.items()}
    return " ".join(f"--set {shlex.quote(f'{key}={value}')}" for key, value in values.items()) or OWN
