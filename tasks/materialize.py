"""Put the dataset in place: the files of all partitions, a card and a provenance record.

The files are written before, partition by partition (`fineweb_mask.tasks.dataset.partition`). Here their rows are
added up and compared with the selection, without reading one again. The card has a YAML header for the hub, and a
description for readers. Then the files become the dataset and replace the last one: in a folder at once, at a URL as
`fineweb_mask.tasks.dataset.output` says.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar

import yaml

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.losses import Wiped
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.urls import without_local_folders
from fineweb_mask.tasks.dataset.folders import UNKNOWN, check_folders
from fineweb_mask.tasks.dataset.output import MATERIALIZE, Output, Unfinished, write_record
from fineweb_mask.tasks.dataset.partition import NOT_IN_FILES, fingerprints, version_of
from fineweb_mask.tasks.reporting.templating import render
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, Manifest
from fineweb_mask.tasks.workspace.records.counts import Counts
from fineweb_mask.tasks.workspace.records.runs import code_and_packages
from fineweb_mask.tasks.workspace.references import NO_FILE, ShardFiles, StageFile

NOT_RECORDED: dict[str, Any] = {
    "workspace": True,
    "report": True,
    "engine": True,
    "materialize": {"output", "export"},
}
"""Settings that say where and how fast a dataset is made, not what is in it."""
LANGUAGE = re.compile(r"[a-z]{2,3}")
"""A code that the hub knows: ISO 639."""
SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")


class MaterializeJob(ProductJob):
    """Make the dataset of all shards from the parts that were made of its partitions."""

    stage: ClassVar[Stage] = Stage(
        MATERIALIZE,
        version=9,
        folders=("dataset",),
        documents=attrgetter("rows"),
        counts=("selected", "selected"),
        gathers=True,
    )
    name: ClassVar[str] = "dataset"
    counts: Counts
    blocks: list[dict[str, Any]]  # what the selection recorded of every block
    recipe: PipelineSettings
    losses: StageFile = NO_FILE  # what every step drops by group
    shards: list[ShardFiles]  # in the order of their names
    partitions: tuple[StageFile, ...] = ()  # the parts with the dataset's files: needed to build it, not to find it

    @property
    def place(self) -> Output:
        """The place of the dataset."""
        return Output.of(self.workspace, self.recipe.materialize)

    @property
    def unfinished(self) -> Unfinished:
        """Where the files of the partitions wait."""
        settings = self.recipe.materialize
        return Unfinished(self.workspace, self.place, version_of(self.shards, settings))

    def depends_on(self) -> Dependencies:
        """Return the settings that change the dataset's bytes, and the files that it is made from."""
        settings = self.recipe.materialize.model_dump(exclude=NOT_IN_FILES)
        return Dependencies(settings=settings, inputs=fingerprints(self.shards))

    @property
    def folder(self) -> Path:
        """The folder of the dataset, which another one replaces."""
        return self.place.folder

    @property
    def manifest_path(self) -> Path:
        """The provenance record."""
        return self.folder / PROVENANCE

    def whole_manifest(self) -> Manifest | None:
        """Return the provenance record if it agrees with the job's key and the dataset is whole, else None."""
        manifest = self.place.whole()
        return manifest if manifest is not None and manifest.key == self.key else None


@stage_task
def materialize(job: MaterializeJob) -> None:
    """Put the files of all partitions in place as the dataset, with its card and provenance record.

    Raises
    ------
    WorkspaceError
        If a part is missing or damaged, or the parts do not hold what was selected.
    """
    job.place.check()
    parts = _parts(job)
    details = _provenance(job, parts) | {
        "retention": _retention(parts, "dump"),
        "languages": _retention(parts, "language"),
    }
    files = {name: file for part in parts for name, file in part.files.items()}
    with job.workspace.alone(), job.unfinished.put_in_place() as folder:
        write_card(folder, details, job.unfinished.data)
        write_record(folder, job.key, tree_files(folder), details, more=files)


def _parts(job: MaterializeJob) -> list[Manifest]:
    """Return the records of all partitions, which hold as many documents as were selected, in not too many folders."""
    parts = []
    for reference in job.partitions:
        if (record := job.unfinished.record(reference.name)) is None:
            raise WorkspaceError(f"part {reference.name} of the dataset is missing or damaged: run again")
        parts.append(record)
    rows = sum(part.details["rows"] for part in parts)
    if rows != job.counts.selected:
        raise WorkspaceError(f"the masks select {rows:,} documents, the counts say {job.counts.selected:,}: run again")
    folders = {name.rpartition("/")[0] for part in parts for name in part.files}
    check_folders(len(folders), job.recipe.materialize.layout)
    return parts


def _retention(parts: list[Manifest], column: str) -> list[dict[str, Any]]:
    """Return the number of ingested and of selected documents by `dump` or by `language`; all have a dump."""
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for row in (row for part in parts for row in part.details["retention"]):
        value = row["dump"] or UNKNOWN if column == "dump" else row["language"]
        if value is not None:
            counted[value].update(documents=row["documents"], selected=row["selected"])
    return [{column: value, **counted[value]} for value in sorted(counted, key=str.encode)]


def _provenance(job: MaterializeJob, parts: list[Manifest]) -> dict[str, Any]:
    """Return the provenance record: sources, recipe, blocks, code and packages."""
    return {
        "rows": job.counts.selected,
        "tokens": sum(part.details["tokens"] for part in parts),
        "counts": job.counts.model_dump(),
        "wiped": job.losses.details.get("wiped", []),
        "sources": [source for part in parts for source in part.details["sources"]],
        "recipe": recipe_recorded(job.recipe),
        "blocks": job.blocks,
        "seed": job.recipe.selection.seed,
        **code_and_packages(),
    }


def recipe_recorded(recipe: PipelineSettings) -> Any:  # noqa: ANN401
    """Return what the provenance record holds of a recipe."""
    return without_local_folders(recipe.model_dump(mode="json", exclude=NOT_RECORDED))


def write_card(folder: Path, details: dict[str, Any], data: str) -> None:
    """Write `README.md`, with the hub's YAML header, for a dataset with data files in folder `data`."""
    recipe = details["recipe"]
    settings = recipe["materialize"]
    path = f"{data}/**/*.parquet"
    header = {
        "pretty_name": settings["title"],
        "license": settings["license"],
        "language": languages(details["languages"]),
        "task_categories": ["text-generation"],
        "size_categories": [size_category(details["rows"])],
        "source_datasets": settings["source_datasets"],
        "tags": ["fineweb-mask", "pre-training", "data-selection"],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": path}]}],
    }
    header = {name: value for name, value in header.items() if value}
    text = render(
        "card.md",
        header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True),
        title=settings["title"],
        recipe=yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True),
        details=details,
        wiped=[str(Wiped(**one)) for one in details["wiped"]],
        data=data,
        scorers=[scorer.get("name", scorer["kind"]) for scorer in recipe["quality"]["scorers"]],
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def languages(counted: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the codes of the languages that at least 1% of the selected documents with a language have.

    >>> languages([{"language": "de", "selected": 30}, {"language": "en", "selected": 0}])
    ['de']
    """
    total = sum(one["selected"] for one in counted)
    return [
        one["language"]
        for one in counted
        if LANGUAGE.fullmatch(one["language"]) and one["selected"] >= max(1, 0.01 * total)
    ]


def size_category(rows: int) -> str:
    """Return the hub's size category of a dataset.

    >>> size_category(1_234)
    '1K<n<10K'
    """
    if rows < 1_000:
        return f"n<{SIZES[0]}"
    place = min(len(str(rows)) - 4, len(SIZES) - 2)
    return f"{SIZES[place]}<n<{SIZES[place + 1]}"
