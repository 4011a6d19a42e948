"""Show the best documents that a selection leaves out and the worst that it keeps, with what decided about each."""

from fineweb_mask.tasks.catalog.fates import SELECTED
from fineweb_mask.tasks.ledger.decisions import Corpus, Explanation, notable
from fineweb_mask.tasks.reporting.page import Card, Section, Side
from fineweb_mask.tasks.reporting.samples import SAMPLED_SHARDS, evenly_spaced

SHOWN = 5
"""Documents of each kind."""
SHOWN_CHARACTERS = 200
TEXT = (
    "The documents of the highest quality that are not selected, and those of the lowest that are{of}, with what "
    "decided. The same of any document: fineweb-mask why, with the workspace's folder and a URL or id."
)


def notable_documents(corpus: Corpus) -> list[Section]:
    """Return a section on the best left out and the worst kept of a sample; none if all have the same quality."""
    places = evenly_spaced(len(corpus.shards), SAMPLED_SHARDS)
    sample = [corpus.shards[place] for place in places]
    found = sorted(notable(corpus, sample, SHOWN), key=_quality)
    if len({_quality(one) for one in found}) < 2:
        return []
    kinds = {
        "Best left out": [one for one in found[::-1] if one.outcome != SELECTED],
        "Worst kept": [one for one in found if one.outcome == SELECTED],
    }
    sides = [Side(title, [_card(corpus, one) for one in some]) for title, some in kinds.items() if some]
    of = "" if len(sample) == len(corpus.shards) else f" of {len(sample)} shards"
    return [Section("Best left out, worst kept", [TEXT.format(of=of)], sides=sides)]


def _quality(one: Explanation) -> float:
    return float(one.numbers["quality"])


def _card(corpus: Corpus, one: Explanation) -> Card:
    """Return the beginning of a document, with its quality, and what decided about it."""
    assert one.row is not None  # noqa: S101 - ingest kept it
    text = " ".join(corpus.values(one.shard, one.row, ["text"])["text"][: 2 * SHOWN_CHARACTERS].split())
    note = f"quality {_quality(one):+.2f}; {one.decisions[-1].reason}"
    beginning = text[:SHOWN_CHARACTERS] + (" …" if len(text) > SHOWN_CHARACTERS else "")
    return Card(one.url or one.id, note, beginning)
