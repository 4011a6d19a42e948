"""Write pages: self-contained HTML files, with their numbers and charts as separate files.

A page consists of tiles, then sections of text, figures, tables and documents in columns. It is written as `index.html`
(no network access, dark and light mode, sortable tables), `index.md` (for the Prefect UI), `metrics.json` and
`plots/*.png`. Any text in it may come from the web.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from fineweb_mask.tasks.reporting.templating import Form, render
from fineweb_mask.tasks.storage.atomic import atomic_write, remove_file
from fineweb_mask.tasks.workspace.job import ProductJob
from fineweb_mask.tasks.workspace.manifest import write_manifest

LISTED = 50
"""Maximum rows of a table in `index.md`, which the Prefect server stores in its database."""


class Tile(NamedTuple):
    """A key figure."""

    value: str
    label: str


class Column(NamedTuple):
    """A column of a table; `form` is the format of its values. Only the form `text` sorts as text."""

    label: str
    form: Form = "text"
    has_bars: bool = False  # each value of 0 or more has a bar, as long as its share of the largest


class Table(NamedTuple):
    """A table that readers can sort by any column."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]  # one value or None for each column
    note: str = ""


class Figure(NamedTuple):
    """A chart on a page, with its numbers behind a fold."""

    name: str  # of its file
    png: bytes
    numbers: Table
    alt: str  # text for readers who cannot see it
    caption: str  # its message, with n and how it was sampled


class Card(NamedTuple):
    """The beginning of a document."""

    title: str
    note: str
    text: str


class Side(NamedTuple):
    """One of several columns of documents."""

    title: str
    cards: Sequence[Card]


class Section(NamedTuple):
    """A part of a page; empty parts of it are left out."""

    title: str
    text: Sequence[str] = ()  # paragraphs
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()
    sides: Sequence[Side] = ()


class Finding(NamedTuple):
    """A sentence on what the page shows, and the title of the section that shows it."""

    text: str
    section: str
    is_worry: bool = False
    heading: str = ""  # that it stands under, beside others of the same


@dataclass(frozen=True)
class Page:
    """The content of a page, from top to bottom; `facts` and `findings` stand above the key figures."""

    title: str
    lead: str
    tiles: Sequence[Tile]
    sections: Sequence[Section]
    footer: str = field(default_factory=lambda: f"fineweb-mask {version('fineweb-mask')}")
    metrics: Mapping[str, Any] = field(default_factory=dict)  # content of `metrics.json`
    facts: Sequence[tuple[str, str]] = ()  # what the page is about: names and values
    findings: Sequence[Finding] = ()

    @property
    def parts(self) -> list[tuple[str, list[Finding]]]:
        """The findings by their headings, in the order in which these come."""
        return [(heading, list(some)) for heading, some in groupby(self.findings, lambda one: one.heading)]

    @property
    def figures(self) -> list[Figure]:
        """The figures of all sections."""
        return [figure for section in self.sections for figure in section.figures]

    def html(self) -> str:
        """Return the page as one HTML file."""
        return render("page.html", page=self)

    def markdown(self) -> str:
        """Return the page as Markdown, with its figures as links to `plots/`."""
        return render("page.md", page=self, listed=LISTED)


class PageJob(ProductJob):
    """A job whose output is a page, which replaces the last one of its kind."""

    @property
    def name(self) -> str:
        """The name of the page."""
        return self.stage.name

    @property
    def folder(self) -> Path:
        """The folder of the page."""
        return self.workspace.root / self.folder_name

    def write(self, page: Page, details: Mapping[str, Any] | None = None) -> None:
        """Replace the page, its numbers and its charts, when no other run does; the manifest is written last.

        Raises
        ------
        ValueError
            If a number of the page is not finite, which JSON cannot represent.
        """
        outputs = {
            self.folder / "metrics.json": (json.dumps(page.metrics, indent=2, allow_nan=False) + "\n").encode(),
            self.folder / "index.html": page.html().encode(),
            self.folder / "index.md": page.markdown().encode(),
            **{self.folder / "plots" / f"{figure.name}.png": figure.png for figure in page.figures},
        }
        with self.workspace.alone():
            remove_file(self.manifest_path)
            for path, content in outputs.items():
                with atomic_write(path) as partial:
                    partial.write_bytes(content)
            for plot in (self.folder / "plots").glob("*.png"):
                if plot not in outputs:
                    plot.unlink()  # of an earlier page
            write_manifest(self.manifest_path, self.key, outputs, details or {})
