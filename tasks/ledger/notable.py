"""Show the best documents that a selection leaves out and the worst that it keeps, with what decided about each."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.tasks.ledger.decisions import SHOWN_CHARACTERS, Corpus, judged
from fineweb_mask.tasks.reporting.geometry import Diversity
from fineweb_mask.tasks.reporting.page import Card, Section, Side
from fineweb_mask.tasks.reporting.samples import DocumentRef, documents_at

SHOWN = 5
"""Documents of each kind."""


def notable(corpus: Corpus, measured: Diversity) -> list[Section]:
    """Return a section on the best left out and the worst kept of a sample; none if all have the same quality."""
    quality, is_kept = measured.quality, measured.is_kept
    if quality.min() == quality.max():
        return []
    order = np.argsort(-quality, kind="stable")
    of = "" if len(quality) == measured.eligible.population else f" of a sample of {len(quality):,} documents"
    kinds = {"Best left out": order[~is_kept[order]][:SHOWN], "Worst kept": order[is_kept[order]][::-1][:SHOWN]}
    sides = [
        Side(title, cards(corpus, [measured.eligible.documents[place] for place in places], quality))
        for title, places in kinds.items()
        if len(places)
    ]
    text = (
        f"The documents of the highest quality that are not selected, and those of the lowest that are{of}, with what "
        "decided. The same of any document: fineweb-mask why, with the workspace's folder and a URL or id."
    )
    return [Section("Best left out, worst kept", [text], sides=sides)]


def cards(corpus: Corpus, refs: Sequence[DocumentRef], known: NDArray[np.float32]) -> list[Card]:
    """Return the beginnings of documents, with their quality among those `known`, (n,), and what decided about them."""
    ascending = sorted(refs)
    rows = dict(
        zip(
            ascending,
            documents_at(corpus.workspace, corpus.shards, ascending, ["id", "url", "text"]),
            strict=True,
        )
    )
    found = []
    for ref in refs:
        row = rows[ref]
        decision, text = judged(corpus, ref), " ".join(row["text"][: 2 * SHOWN_CHARACTERS].split())
        worse, better = (float(some.mean()) for some in (known < row["quality"], known > row["quality"]))
        than = f"better than {int(100 * worse)}%" if worse >= better else f"worse than {int(100 * better)}%"
        note = f"quality {row['quality']:+.2f}, {than}; {decision.reason}"
        beginning = text[:SHOWN_CHARACTERS] + (" …" if len(text) > SHOWN_CHARACTERS else "")
        found.append(Card(row["url"] or row["id"], note, beginning))
    return found
