"""Run the jobs of a flow without Prefect."""

import random

import numpy as np
import pyarrow.parquet as pq

from fineweb_mask.flows.pipeline.fit import PretrainedModels
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.source.columns import settle
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.workspace import Workspace


class TaskRunsHere:
    """Builds jobs one at a time: in their order, or at random; may stop after some, as a run that is killed."""

    def __init__(self, seed=None, stop_after=None):
        self.names = []
        self._random = None if seed is None else random.Random(seed)
        self._left = stop_after

    def show_current(self, _):
        """Show nothing."""

    def built(self, jobs, _at_once):
        waiting = list(jobs)
        if self._random is not None:
            self._random.shuffle(waiting)
        for place, job in waiting:
            if self._left == len(self.names):
                raise KeyboardInterrupt
            try:
                file = job.task(job)
            except BadShardError as error:
                yield place, error
                continue
            if not file.cached:
                self.names.append(f"{job.kind} {job.name}")
            yield place, file


class RunHere(Run):
    """A run whose jobs are built as `TaskRunsHere` does; `built` names them."""

    def __init__(self, settings, *, shards=None, models=None, seed=None, stop_after=None, **options):
        here, named = TaskRunsHere(seed, stop_after), list(settings.named_columns.values())
        self.built = here.names
        super().__init__(
            Workspace(settings.workspace),
            settings,
            settle(discover(settings.source), settings.source, named) if shards is None else shards,
            PretrainedModels.of(settings) if models is None else models,
            task_runs=here,
            **options,
        )


def recipe_of(folder, corpus, **sections):
    """Return settings of a quick run, with some settings of some sections."""
    usual = {
        "ingest": {"min_chars": 20},
        "quality": {"scorers": [{"kind": "column", "column": "n_chars"}]},
        "embedding": {"static_dimensions": 16},
        "selection": {"select_ratio": 0.5, "solver": "top_quality", "device": "cpu"},
    }
    given = {name: usual.get(name, {}) | sections.get(name, {}) for name in usual | sections}
    return PipelineSettings.model_validate({"workspace": str(folder), "source": {"path": str(corpus)}} | given)


def text_of(*seed):
    """Return a text of 100 words that are drawn at random."""
    letters = np.random.default_rng(seed).choice(list("abcdefgh"), (100, 5))
    return " ".join("".join(word) for word in letters)


def write_shard(corpus, source, name, rows):
    """Write some of the sample corpus's documents as a shard."""
    table = pq.read_table(sorted((source / "corpus").glob("*.parquet"))[0])
    pq.write_table(table.take(list(rows)), corpus / f"{name}.parquet")
