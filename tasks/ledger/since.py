"""Say what changed since the selection that was reported before: settings, figures, documents that came and went."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.tasks.ledger.decisions import Corpus
from fineweb_mask.tasks.ledger.notable import SHOWN, cards
from fineweb_mask.tasks.reporting.geometry import Diversity
from fineweb_mask.tasks.reporting.page import Column, Finding, Section, Side, Table, some
from fineweb_mask.tasks.reporting.samples import DocumentRef, quality_at
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.storage.remote.copies import local_copies, read_text
from fineweb_mask.tasks.workspace.references import ShardFiles

TITLE = "What changed since the selection before"
SETTINGS = ("ingest", "quality", "embedding", "selection")
"""Sections of the recipe whose changes are named."""
ABSENT = "not set"


class Change(NamedTuple):
    """The selected documents that the earlier selection lacked, and the other way round."""

    entered: list[DocumentRef]
    left: list[DocumentRef]  # but those that are not eligible any more
    gone: int  # number of these
    in_both: int
    compared: int  # shards

    @property
    def changed(self) -> float:
        """Share of the documents that either selects which are not in both."""
        differ = len(self.entered) + len(self.left) + self.gone
        return differ / max(differ + self.in_both, 1)


def record(
    folder: Path, recipe: Mapping[str, Any], shards: Sequence[ShardFiles], figures: Mapping[str, float]
) -> dict[str, Any]:
    """Return what later reports compare with: settings, files of the selection, figures; and `before`, another's.

    That is what the report in the folder has of another selection, its own or the one before.
    """
    files = {one.documents.name: [one.documents.fingerprint, one.masks.path] for one in shards}
    last = None
    with suppress(OSError, ValueError, KeyError):
        last = json.loads(read_text(folder / "metrics.json"))["selection"]
    before = last["before"] if last and last["shards"] == files else last
    settings = {name: recipe[name] for name in SETTINGS if name in recipe}
    return {
        "settings": settings,
        "shards": files,
        "figures": dict(figures),
        "before": before and {**before, "before": None},
    }


def since(corpus: Corpus, now: Mapping[str, Any], measured: Diversity) -> tuple[list[Finding], list[Section]]:
    """Return a sentence and a section on what changed since the selection before; nothing if there was none."""
    before = now["before"]
    if before is None:
        return [], []
    changed = [f"{name} {old} → {new}" for name, (old, new) in _differing(before["settings"], now["settings"]).items()]
    names = [*dict.fromkeys([*before["figures"], *now["figures"]])]
    rows = [[name, before["figures"].get(name), now["figures"].get(name)] for name in names]
    columns = [Column("figure"), Column("before", "number"), Column("now", "number")]
    found = _compared(corpus, before["shards"])
    texts = [f"Settings: {some(changed)}."] if changed else ["The settings of the selection are the same."]
    sides = []
    if found.compared < len(corpus.shards):
        texts.append(
            f"Documents can be compared in {found.compared:,} of {len(corpus.shards):,} files: the others were read "
            "again, or their earlier masks are removed."
        )
    if found.compared:
        texts.append(
            f"{len(found.entered):,} documents entered, {len(found.left) + found.gone:,} left: {found.changed:.1%} of "
            "those that either selects. Shown are those of the highest quality that are still selected from. By stage "
            "and group: fineweb-mask diff."
        )
        for title, refs in (("Entered", found.entered), ("Left", found.left)):
            if refs:
                order = np.argsort(-quality_at(corpus.workspace, corpus.shards, refs), kind="stable")
                sides.append(Side(title, cards(corpus, [refs[place] for place in order[:SHOWN]], measured.quality)))
    said = f"{found.changed:.1%} of the documents that either selects are not in both" if found.compared else "Changed"
    finding = Finding(f"{said}: {some(changed)}." if changed else f"{said}.", TITLE, heading=TITLE)
    return [finding], [Section(TITLE, texts, tables=[Table("Figures", columns, rows)], sides=sides)]


def _differing(before: Any, now: Any, name: str = "") -> dict[str, tuple[str, str]]:  # noqa: ANN401 - JSON
    """Return the values that differ between two settings, by their keys."""
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        found: dict[str, tuple[str, str]] = {}
        for key in dict.fromkeys([*before, *now]):
            below = _differing(before.get(key, ABSENT), now.get(key, ABSENT), f"{name}.{key}" if name else key)
            found |= below
        return found
    return {} if before == now else {name: (_short(before), _short(now))}


def _short(value: Any) -> str:  # noqa: ANN401 - JSON
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]} …"


def _compared(corpus: Corpus, before: Mapping[str, tuple[str, str]]) -> Change:
    """Compare the masks with earlier ones of the same documents, as far as these are still there."""
    entered, left, gone, in_both, compared = list[DocumentRef](), list[DocumentRef](), 0, 0, 0
    for index, shard in enumerate(corpus.shards):
        fingerprint, path = before.get(shard.documents.name, ("", ""))
        if fingerprint != shard.documents.fingerprint:
            continue
        with suppress(OSError):
            (earlier, _), (now, eligible) = (_masks(corpus, one) for one in (path, shard.masks.path))
            entered += [DocumentRef(index, int(row)) for row in np.flatnonzero(now & ~earlier)]
            left += [DocumentRef(index, int(row)) for row in np.flatnonzero(earlier & ~now & eligible)]
            gone += int((earlier & ~eligible).sum())
            in_both, compared = in_both + int((earlier & now).sum()), compared + 1
    return Change(entered, left, gone, in_both, compared)


@local_copies()
def _masks(corpus: Corpus, path: str) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which documents of a shard are selected, and which were selected from, (rows,) each."""
    masks = read_table(corpus.workspace.local(path), columns=["selected", "block"])
    return masks["selected"].to_numpy().astype(bool), masks["block"].is_valid().to_numpy().astype(bool)
