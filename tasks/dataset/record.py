"""Write a dataset's provenance record, and bind it to the card.

The record, provenance.json, holds the SHA-256 of every file of the dataset, the card among them. The card, README.md,
ends with the SHA-256 of the record, taken without the card's own entry. So no file can be changed alone.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fineweb_mask.tasks.dataset.output import CARD, PROVENANCE
from fineweb_mask.tasks.workspace.manifest import ManifestFile, write_manifest
from fineweb_mask.tasks.workspace.references import StageKey

CHECKSUM = "\nSHA-256 of `provenance.json`, without the entry of this card: `{}`\n"
CHECKSUM_LINE = re.compile(re.escape(CHECKSUM).replace(r"\{\}", "([0-9a-f]{64})") + r"\Z")


def write_record(
    folder: Path,
    key: StageKey,
    files: Iterable[Path],
    details: Mapping[str, Any],
    more: Mapping[str, ManifestFile] | None = None,
) -> None:
    """Write the record of a dataset, and its hash at the end of the card, instead of an earlier one.

    Parameters
    ----------
    folder
        The dataset's folder, with the card.
    key
        What the dataset was made with.
    files
        The files in it, with the card.
    details
        What else is recorded.
    more
        The size and hash of files that are elsewhere, by name.
    """
    card, others = folder / CARD, [file for file in files if file != folder / CARD]
    write_manifest(folder / PROVENANCE, key, others, details, more=more)
    text = CHECKSUM_LINE.sub("", card.read_text(encoding="utf-8"))
    checksum = CHECKSUM.format(record_digest((folder / PROVENANCE).read_bytes()))
    card.write_text(text + checksum, encoding="utf-8")
    write_manifest(folder / PROVENANCE, key, [*others, card], details, more=more)


def record_digest(record: bytes) -> str:
    """Return the SHA-256 of the content of a provenance.json, as sorted JSON, without the entry of the card."""
    content = json.loads(record)
    content["files"].pop(CARD, None)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def digest_on_card(card: str) -> str | None:
    """Return the hash of the record that a card ends with, or None if it has none."""
    found = CHECKSUM_LINE.search(card)
    return None if found is None else found[1]
