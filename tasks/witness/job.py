"""Measure what selections teach a language model of n-grams, as a stage whose figures pages and summaries show."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.witness.effects import Judged
from fineweb_mask.models.witness.witness import Witness, witness
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.witness.documents import read_corpus
from fineweb_mask.tasks.workspace.job import Dependencies, FolderJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile

REPORT = "report"
MOST_TOKENS = 300_000
"""Of an arm that are read: more make a comparison finer, and slower."""


class WitnessJob(FolderJob):
    """Train a model of n-grams on every selection and its controls, and judge them on held-out documents."""

    stage: ClassVar[Stage] = Stage("witness", version=2, label="report", folders=("fitted/witness",), kept=True)
    page: str = REPORT  # that shows the figures
    shards: list[ShardFiles]
    selections: dict[str, list[StageFile]]  # by name, the masks of every shard
    columns: dict[str, str] = Field(default_factory=dict)  # by name, the column of the masks if it is not `selected`
    targets: dict[str, list[SourceShard]] = Field(default_factory=dict)
    by: str | None = None
    threshold: float  # the least cosine of near-duplicates
    most_tokens: int = MOST_TOKENS
    doses: bool = True

    @property
    def name(self) -> str:
        """The name of the page."""
        return self.page

    @property
    def folder_name(self) -> str:
        """The folder of the figures, without the tag of the key."""
        return super().folder_name if self.page == REPORT else f"{self.page}/witness"

    def depends_on(self) -> Dependencies:
        """Return how arms are made, and the fingerprints of the corpus, of the selections and of the targets."""
        files = [(shard.documents, shard.scores, shard.embeddings, shard.duplicates) for shard in self.shards]
        settings = [self.columns, self.by, self.threshold, self.most_tokens, self.doses]
        return Dependencies(settings=settings, inputs=[files, self.selections, self.targets])


@stage_task
def measure_teaching(job: WitnessJob) -> None:
    """Measure; `details` hold the figures, or `skipped` with the reason why there are none."""
    selections = {name: (files, job.columns.get(name, "selected")) for name, files in job.selections.items()}
    try:
        corpus = read_corpus(
            job.workspace,
            job.shards,
            selections,
            job.targets,
            by=job.by,
            threshold=job.threshold,
            most_tokens=job.most_tokens,
        )
        found = witness(
            corpus.pool,
            corpus.selections,
            corpus.held_out,
            vocabulary=corpus.vocabulary,
            quality=corpus.quality,
            most_tokens=job.most_tokens,
            doses=job.doses,
        )
    except DataError as error:
        if job.targets:
            raise
        details: dict[str, Any] = {"rows": 0, "skipped": str(error)}
    else:
        details = {"rows": len(corpus.pool.ends), "excluded": corpus.excluded, **figures(found, corpus.remarks)}
    write_manifest(job.manifest_path, job.key, [], details)


def figures(found: Witness, remarks: Sequence[str]) -> dict[str, Any]:
    """Return what was found as JSON values.

    `remarks` are sentences on what limits them; `sets` has, for every held-out set, `documents`, `left_out`, `sees` (a
    share of damage or None), `losses`, `doses`, `against_random`, `against_lengths` and `against_best`, each with the
    dose of the same effect.
    """
    return {
        "tokens": found.tokens,
        "documents": found.documents,
        "lengths": found.lengths,
        "remarks": list(remarks),
        "sets": {name: _of_set(judged) for name, judged in found.sets.items()},
    }


def _of_set(judged: Judged) -> dict[str, Any]:
    def effects(of: Mapping[str, Any]) -> dict[str, Any]:
        found = {}
        for name, effect in of.items():
            dose = judged.as_dose(effect.difference)
            share = None if dose is None or dose[1] == float("inf") else dose[1]
            found[name] = effect._asdict() | {"dose": dose and dose[0], "share": share}
        return found

    return judged._asdict() | {
        "doses": {
            kind: {str(share): effect for share, effect in shares.items()} for kind, shares in judged.doses.items()
        },
        "against_random": effects(judged.against_random),
        "against_lengths": effects(judged.against_lengths),
        "against_best": effects(judged.against_best),
    }
