"""Write the dataset card: a YAML header for the hub, and a description for readers."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from fineweb_mask.tasks.reporting.breakdown import Breakdown, as_metrics
from fineweb_mask.tasks.reporting.page import Figure, Table
from fineweb_mask.tasks.reporting.sections import distributions, retention
from fineweb_mask.tasks.reporting.templating import render

LANGUAGE = re.compile(r"[a-z]{2,3}")
"""A code that the hub knows: ISO 639."""
SIZES = ("1K", "10K", "100K", "1M", "10M", "100M", "1B", "10B", "100B", "1T")


class Kept(NamedTuple):
    """Selected shares by group, for the card and the provenance record."""

    deciles: dict[str, list[dict[str, Any]]]
    figures: list[Figure]
    tables: list[Table]


def what_was_kept(breakdown: Breakdown) -> Kept:
    """Return the selected shares by group; a column with one group has no table."""
    kept = retention(breakdown)
    groups = [pair for pair in zip(kept.figures, kept.tables, strict=True) if len(pair[1].rows) > 1]
    return Kept(
        {name: as_metrics(rows) for name, rows in breakdown.deciles.items()},
        [*distributions(breakdown).figures, *(figure for figure, _ in groups)],
        [table for _, table in groups],
    )


def write_card(folder: Path, details: dict[str, Any], kept: Kept, data: str) -> None:
    """Write `README.md`, with the hub's YAML header, and its plots for a dataset with data files in folder `data`."""
    recipe = details["recipe"]
    settings = recipe["materialize"]
    path = f"{data}/**/*.{settings['format']}"
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
