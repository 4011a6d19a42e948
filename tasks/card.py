"""The dataset card: what the hub reads of a dataset, and what a person should know of it."""

from pathlib import Path
from typing import Any

import yaml

from tasks.breakdown import Breakdown
from tasks.sections import distributions, retention
from tasks.templating import render


def write_card(folder: Path, details: dict[str, Any], breakdown: Breakdown, data: str) -> None:
    """Write `README.md`, with the hub's YAML header, and the plots that it shows into a dataset's folder.

    Parameters
    ----------
    folder
        The dataset.
    details
        Its provenance.
    breakdown
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
    kept = retention(breakdown)
    groups = [pair for pair in zip(kept.figures, kept.tables, strict=True) if len(pair[1].rows) > 1]
    figures = [*distributions(breakdown).figures, *(figure for figure, _ in groups)]
    (folder / "plots").mkdir()
    for figure in figures:
        (folder / "plots" / f"{figure.name}.png").write_bytes(figure.png)
    text = render(
        "card.md",
        header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True),
        title=settings["title"],
        recipe=yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True),
        details=details,
        figures=figures,
        tables=[table for _, table in groups],
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
