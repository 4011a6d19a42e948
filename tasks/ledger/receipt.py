"""Write down what was removed from a workspace, and check that it is gone.

A receipt holds no text, id or URL: digests, counts, and the hashes of the files before and after.
"""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import BaseModel, ValidationError

from fineweb_mask.models.ledger.removal import Unwanted, in_order, is_in
from fineweb_mask.models.urls import reject_credentials
from fineweb_mask.tasks.dataset.verify import Finding, VerifyError
from fineweb_mask.tasks.export import FOLDER as EXPORTS
from fineweb_mask.tasks.ledger.search import search
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.remote.copies import ensure_local, local_copies, size_of
from fineweb_mask.tasks.storage.remote.filesystem import open_source
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, read_manifest
from fineweb_mask.tasks.workspace.references import digest, file_digest
from fineweb_mask.tasks.workspace.removals import Removals
from fineweb_mask.tasks.workspace.workspace import Workspace

Hashes = tuple[str | None, str | None]
"""SHA-256 of a file before and after; None: it was not there."""


class Receipt(BaseModel):
    """What was removed, from which files."""

    asked: dict[str, int]  # names in the list, by kind
    asked_digest: str  # of their digests
    found: int  # names of which there were documents
    documents: int
    copies: int  # of these, documents of another name with the text of one
    twins: int  # of these, near-duplicates
    twins_left: int | None  # None: the recipe looks for none
    selected: int  # of these, documents of the dataset
    texts: list[str]  # digests of their texts, in hexadecimal
    rows: dict[str, int]  # of the dataset, `before` and `after`
    files: dict[str, Hashes]  # of the workspace's stages, of the shards that held them
    dataset: dict[str, Hashes]  # of the dataset, where they differ
    dataset_files: int = 0  # of the dataset in the end
    deleted: list[str] = []  # folders of pages, maps and exports that are to be made again
    started: str
    ended: str = ""

    def write(self, path: Path) -> None:
        """Write the receipt, with a checksum."""
        content = self.model_dump(mode="json")
        with atomic_write(path) as partial:
            partial.write_text(json.dumps({**content, "checksum": digest(content)}, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str) -> Self:
        """Read a receipt at a path or URL.

        Raises
        ------
        VerifyError
            If it cannot be read, is none, or was changed.
        """
        try:
            with open_source(reject_credentials(path)) as stream:
                content = json.load(stream)
            checksum = content.pop("checksum", None) if isinstance(content, dict) else None
            found = cls.model_validate(content)
        except OSError as error:
            reason = error.strerror or error
            raise VerifyError(f"--receipt: {path} cannot be read: {reason}: give a file that can be") from error
        except (ValueError, ValidationError) as error:
            raise VerifyError(
                f"--receipt: {path} is no receipt of `fineweb-mask remove`: give reports/removal-<date>.json"
            ) from error
        if checksum != digest(content):
            raise VerifyError(f"--receipt: {path} was changed since it was written: use a copy that was not")
        return found

    @property
    def unwanted(self) -> Unwanted:
        """What the removed documents are recognised by: their texts."""
        return Unwanted({"text": in_order(map(bytes.fromhex, self.texts))})


def now() -> str:
    """Return the time as it is written down."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def free_name(workspace: Workspace) -> str:
    """Return the path in a workspace of a new receipt of today."""
    name = f"reports/removal-{datetime.now(UTC):%Y-%m-%d}"
    taken = {path.name for path in workspace.files("reports/*.json")}
    number = 1
    while Path(path := f"{name}{f'-{number}' if number > 1 else ''}.json").name in taken:
        number += 1
    return path


def hashes(workspace: Workspace, paths: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of files, by their paths in the workspace."""
    found = {}
    for path in paths:
        with local_copies():
            if size_of(workspace.root / path) is not None:
                found[path] = file_digest(ensure_local(workspace.root / path))
    return found


def compared(before: Mapping[str, str], after: Mapping[str, str], *, all_of_them: bool = True) -> dict[str, Hashes]:
    """Return the hashes of files before and after, in the order of their names; only where they differ, if asked."""
    found = {name: (before.get(name), after.get(name)) for name in sorted({*before, *after})}
    return {name: pair for name, pair in found.items() if all_of_them or pair[0] != pair[1]}


def check_workspace(workspace: Workspace, receipt: Receipt, content: str) -> list[Finding]:
    """Return what of a workspace contradicts a receipt; `content` is the digest of its dataset."""
    removals = Removals.read(workspace)
    findings = []
    if removals.pending is not None:
        findings.append(Finding(file=workspace.address, problem="a removal is not finished: run `remove` again"))
    texts = in_order(map(bytes.fromhex, receipt.texts))
    if missing := int((~is_in(texts, removals.digests("text"))).sum()):
        problem = f"lacks {missing:,} of the removed documents: a run may bring them back"
        findings.append(Finding(file="removed.parquet", problem=problem))
    found = search(workspace, Unwanted({"text": texts}))
    problems = {path: f"holds {len(rows):,} removed documents" for path, rows in found.rows.items()}
    problems |= dict.fromkeys(found.dropped, "holds texts of removed documents")
    for path, sha256 in hashes(workspace, receipt.files).items():
        before, after = receipt.files[path]
        if after is None and sha256 == before:
            problems.setdefault(path, "is as it was before the removal")
        elif after is not None and sha256 != after:
            problems.setdefault(path, f"has SHA-256 {sha256}, {after} is in the receipt")
    for record in workspace.files(f"{EXPORTS}/*/{PROVENANCE}"):
        export = read_manifest(record)
        if export is not None and export.details.get("dataset") != content:
            problems[workspace.relative(record.parent)] = "is an export of an earlier dataset: export it again"
    return [*findings, *(Finding(file=path, problem=problem) for path, problem in sorted(problems.items()))]
