"""Measure what selections teach a language model of n-grams, and say it: a sentence and a table of pages."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.witness.witness import NO_DIFFERENCE, RANDOM, witness
from fineweb_mask.tasks.reporting.findings import DOUBT, GAINED, LOST
from fineweb_mask.tasks.reporting.page import Column, Finding, Section, Table
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.witness.documents import POOL, read_corpus
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile

REPORT = "report"
MOST_TOKENS = 300_000
"""Of an arm that are read: more make a comparison finer, and slower."""
SELECTION = "selection"
"""What a run's own selection is called."""
TITLE = "What a language model learns from it"
EXPLAINED = (
    "Does a language model learn more from the selection than from as many tokens of other documents? A small model of "
    "n-grams, which counts what follows up to four word pieces, reads equally many tokens of each selection, "
    "then predicts documents that no selection has. It is scored by how much they surprise it, in bits per byte: fewer "
    "are better, and 2% better means 2% fewer. Random documents are the yardstick, at 0%.",
    "The model sees vocabulary, phrases, style, repetition and damage, and nothing of reasoning. It rewards what is "
    "like the held-out documents: a selection that leaves out spam and copies predicts spam and copies worse.",
    "Short documents teach more words for the same tokens, whatever was chosen: each selection is therefore compared "
    "with random documents of its own lengths, too.",
)


class WitnessJob(ProductJob):
    """Train a model of n-grams on every selection and its controls, and judge them on held-out documents."""

    stage: ClassVar[Stage] = Stage("witness", version=5, label="report", folders=("fitted/witness",))
    page: str = REPORT  # that shows the figures
    shards: list[ShardFiles]
    selections: dict[str, list[StageFile]]  # by name, the masks of every shard
    targets: dict[str, list[SourceShard]] = Field(default_factory=dict)
    threshold: float  # the least cosine of near-duplicates
    most_tokens: int = MOST_TOKENS

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
        settings = [self.threshold, self.most_tokens]
        return Dependencies(settings=settings, inputs=[files, self.selections, self.targets])


@stage_task
def measure_teaching(job: WitnessJob) -> None:
    """Measure; `details` hold the figures, or `skipped` with the reason why there are none."""
    limits: dict[str, Any] = {"threshold": job.threshold, "most_tokens": job.most_tokens}
    try:
        corpus = read_corpus(job.workspace, job.shards, job.selections, job.targets, **limits)
        found = witness(
            corpus.pool,
            corpus.selections,
            corpus.held_out,
            vocabulary=corpus.vocabulary,
            quality=corpus.quality,
            most_tokens=job.most_tokens,
        )
        details = {"rows": len(corpus.pool.ends), "excluded": corpus.excluded, **found}
    except DataError as error:
        if job.targets:
            raise
        details = {"rows": 0, "skipped": str(error)}
    write_manifest(job.manifest_path, job.key, [], details)


def teaching_sentence(found: Mapping[str, Any]) -> str:
    """Return what a run's selection teaches, in one sentence, from what `measure_teaching` found of it."""
    effects = found["sets"][POOL]["against"][SELECTION]
    effect, lengths = effects[RANDOM], effects.get(found["lengths"].get(SELECTION))
    learned = "A language model that reads the selection predicts held-out documents"
    if effect["verdict"] == NO_DIFFERENCE:
        said = f"{learned} as well as one that reads as many random tokens ({_interval(effect)} better)"
    else:
        said = f"{learned} {_by(effect)} than one that reads as many random tokens"
    if lengths is None:
        return f"{said}. Its documents are as long as random ones."
    if lengths["verdict"] == NO_DIFFERENCE:
        return f"{said}; beside random documents of the same lengths no difference is seen."
    return f"{said}, and {_by(lengths)} than random documents of the same lengths."


def gains(found: Mapping[str, Any], of_set: str) -> list[str]:
    """Return how much better the first of some selections teaches than every other, in lines, with 95% intervals."""
    against = found["sets"][of_set]["against"]
    lines = []
    for name, one in against[next(iter(against))].items():
        unseen = f": {NO_DIFFERENCE}" if one["verdict"] == NO_DIFFERENCE else ""
        lines.append(f"{one['gain']:+.1%} (95% interval {_interval(one)}) {name}{unseen}")
    return lines


def teaching_findings(found: Mapping[str, Any]) -> list[Finding]:
    """Return what a page says first of its selection; nothing where nothing was measured."""
    if "skipped" in found:
        return []
    verdict = found["sets"][POOL]["against"][SELECTION][RANDOM]["verdict"]
    heading = {"better": GAINED, "worse": LOST}.get(verdict, DOUBT)
    return [Finding(teaching_sentence(found), TITLE, is_worry=verdict == "worse", heading=heading)]


def _by(effect: Mapping[str, Any]) -> str:
    return f"{abs(effect['gain']):.1%} {effect['verdict']}"


def _interval(effect: Mapping[str, Any]) -> str:
    return f"{effect['low']:+.1%} to {effect['high']:+.1%}"


def teaching_column(found: Mapping[str, Any]) -> dict[str, float | None]:
    """Return by selection how much better documents are predicted than after random ones, as a share of the loss."""
    if "skipped" in found:
        return {}
    return {RANDOM: 0.0} | {name: one[RANDOM]["gain"] for name, one in found["sets"][POOL]["against"].items()}


def teaching_section(found: Mapping[str, Any]) -> Section:
    """Return the section of a page on what `measure_teaching` found."""
    if "skipped" in found:
        return Section(TITLE, (f"Not measured: {found['skipped']}.",))
    tables = [_table(of_set, found, measured) for of_set, measured in found["sets"].items()]
    return Section(TITLE, EXPLAINED, tables=tables)


def _table(of_set: str, found: Mapping[str, Any], measured: Mapping[str, Any]) -> Table:
    columns = [
        Column("selection"),
        Column("documents", "count"),
        Column("bits per byte", "bits"),
        Column("better than random", "share"),
        Column("95% interval"),
        Column("verdict"),
        Column("against random of its lengths"),
    ]
    rows: list[list[Any]] = []
    for name, losses in measured["losses"].items():
        row = [name, round(found["documents"][name]), float(np.mean(losses))]
        if name == RANDOM:
            rows.append([*row, 0.0, "", "yardstick", ""])
        elif name in measured["against"]:
            one, lengths = measured["against"][name], found["lengths"].get(name)
            beside = "as long" if lengths is None else f"{one[lengths]['gain']:+.1%}, {one[lengths]['verdict']}"
            rows.append([*row, one[RANDOM]["gain"], _interval(one[RANDOM]), one[RANDOM]["verdict"], beside])
    note = (
        f"{found['tokens']:,} tokens of each, n = {measured['documents']:,} documents. Intervals hold the choice of "
        "held-out documents, by host, and of the random ones, for all selections together (Bonferroni). Held-out "
        f"documents that nothing predicts are left out ({measured['left_out']})."
    )
    title = "Held-out documents of the corpus" if of_set == POOL else f"Held-out documents of {of_set}"
    return Table(title, columns, sorted(rows, key=lambda row: row[2]), note=note)
