"""The dataset card: what the hub reads of a dataset, and what a person should know of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fineweb_mask.tasks.reporting.breakdown import as_metrics, break_down
from fineweb_mask.tasks.reporting.page import Figure, Table
from fineweb_mask.tasks.reporting.sections import distributions, retention
from fineweb_mask.tasks.reporting.templating import render
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace


class Kept(NamedTuple):
    """What was kept of which documents, as the card shows it."""

    deciles: dict[str, list[dict[str, Any]]]
    figures: list[Figure]
    tables: list[Table]


def what_was_kept(workspace: Workspace, shards: Sequence[ShardFiles]) -> Kept:
    """Return what was selected of which documents; groups that do not differ are not shown."""
    breakdown = break_down(workspace, shards, groups=())
    kept = retention(breakdown)
    groups = [pair for pair in zip(kept.figures, kept.tables, strict=True) if len(pair[1].rows) > 1]
    return Kept(
        {name: as_metrics(rows) for name, rows in breakdown.deciles.items()},
        [*distributions(breakdown).figures, *(figure for figure, _ in groups)],
        [table for _, table in groups],
    )


def write_card(folder: Path, details: dict[str, Any], kept: Kept, data: str) -> None:
    """Write `README.md`, with the hub's YAML header, and the plots that it shows into a dataset's folder.

    Parameters
    ----------
    folder
        The dataset.
    details
        Its provenance.
    kept
        What was selected of which documents.
    data
        Name of the folder of its data files.
    """
    recipe = details["recipe"]
    settings = recipe["materialize"]
    header = {
        "pretty_name": settings["title"],
        "license": settings["license"],
        "language": recipe["ingest"]["languages"] or ["en"],
        "task_categories": ["text-generation"],
        "size_categories": [size_category(details["rows"])],
        "source_datasets": settings["source_datasets"],
        "tags": ["fineweb-mask", "pre-training", "data-selection"],
        "configs": [
            {
                "config_name": "default",
                "data_files": [{"split": "train", "path": f"{data}/**/*.{settings['format']}"}],
            }
        ],
    }
    (folder / "plots").mkdir()
    for figure in kept.figures:
        (folder / "plots" / f"{figure.name}.png").write_bytes(figure.png)
    text = render(
        "card.md",
        header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True),
        title=settings["title"],
        recipe=yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True),
        details=details,
        figures=kept.figures,
        tables=kept.tables,
        data=data,
        scorers=[scorer["name"] for scorer in recipe["quality"]["scorers"]],
    )
    (folder / "README.md").write_text(text, encoding="utf-8")


def size_category(rows: int) -> str:
    """Return the hub's size category of a dataset."""
    edges = [
        (10**3, "n<1K"),
        (10**4, "1K<n<10K"),
        (10**5, "10K<n<100K"),
        (10**6, "100K<n<1M"),
        (10**7, "1M<n<10M"),
    ]
    edges += [(10**8, "10M<n<100M"), (10**9, "100M<n<1B"), (10**10, "1B<n<10B"), (10**11, "10B<n<100B")]
    return next((name for edge, name in edges if rows < edge), "100B<n<1T")
