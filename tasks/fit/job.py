"""Keep what is fitted on the corpus, and read the sample that it is fitted on.

A fitted model is kept in `fitted/` and reused while the corpus grows, because all shards must share one encoder. It is
fitted again if a refit is requested, or nothing that it was fitted on is in the corpus; other settings have their own
model. A lost or damaged model is fitted again on the same shards as before if these are unchanged.

The files of a model are never replaced, because jobs may be reading them: their names tell the settings and what the
model was fitted on. Only the manifest is, whose name tells the settings.
"""

from collections.abc import Callable, Container, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.tasks.storage.parquet import VerifiedFile, read_table
from fineweb_mask.tasks.workspace.job import ProductJob
from fineweb_mask.tasks.workspace.manifest import Manifest, read_manifest
from fineweb_mask.tasks.workspace.references import StageFile, digest, shard_and_tag
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

SAMPLED_SHARDS = 64
"""Most shards that a sample of the corpus is read from: one shard of FineWeb holds a million documents."""


class FitJob(ProductJob):
    """Fit one model on the documents and keep it when the corpus grows; `force` fits it again."""

    documents: list[StageFile]
    duplicates: list[StageFile]  # of the same shards: rows that have no part in the sample

    def model_path(self, documents: list[StageFile], suffix: str = "") -> Path:
        """Return the file, which has a suffix, or the folder of the model that is fitted on these documents."""
        fitted_on = {file.name: file.fingerprint for file in documents}
        return self.workspace.fitted / f"{self.name}.{digest([self.key.fingerprint, fitted_on])[:16]}{suffix}"

    def whole_manifest(self) -> Manifest | None:
        """Return the manifest if the model is whole, and was fitted with these settings on this corpus, else None."""
        manifest = super().whole_manifest()
        return manifest if manifest is not None and self._is_of_this_corpus(manifest) else None

    @property
    def replaces(self) -> list[str]:
        """The names of the shards that the model was fitted on, if it is another corpus's and is fitted again."""
        manifest = read_manifest(self.manifest_path)
        is_kept = manifest is None or manifest.key != self.key or self._is_of_this_corpus(manifest)
        return [] if is_kept or manifest is None else list(manifest.fitted_on)

    def _is_of_this_corpus(self, manifest: Manifest) -> bool:
        """Return whether a shard that a model was fitted on, or a document of one so named, is in the corpus."""
        earlier = manifest.fitted_on
        named = [file for file in self.documents if file.name in earlier]
        if not earlier or not self.documents or any(file.fingerprint == earlier[file.name] for file in named):
            return True
        return any(_has_a_document_of(self.root, file.path, earlier[file.name]) for file in named)

    def fitting_documents(self) -> list[StageFile]:
        """Return the documents to fit on: those of a lost earlier fit where they are unchanged, else all."""
        manifest = None if self.force else read_manifest(self.manifest_path)
        if manifest is None:
            return self.documents
        earlier = manifest.fitted_on
        same = [file for file in self.documents if earlier.get(file.name) == file.fingerprint]
        return same if same and len(same) == len(earlier) else self.documents

    def sampled_texts(self, documents: list[StageFile], limit: int) -> Iterator[str]:
        """Yield about `limit` texts; see `sampled_documents`."""
        for _, batch in self.sampled_documents(documents, limit, lambda *_: ["text"]):
            yield from batch["text"].to_pylist()

    def sampled_documents(
        self, documents: list[StageFile], limit: int, columns: Callable[[pa.Schema, str], list[str]]
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Yield about `limit` of the documents that are no duplicates in batches, with their shard.

        They are evenly spaced over at most `SAMPLED_SHARDS` shards. `columns` returns the columns to read of a shard,
        from its schema and name.
        """
        every = max(1, -(-len(documents) // SAMPLED_SHARDS))
        duplicates = {file.name: file for file in self.duplicates}
        kept = [
            (shard, np.setdiff1d(np.arange(shard.rows), duplicate_rows(self.workspace, duplicates[shard.name])))
            for shard in documents[::every]
            if shard.rows  # a file without rows may have no columns
        ]
        total = sum(len(rows) for _, rows in kept)
        step = max(1, -(-total // limit))

        def batches() -> Iterator[tuple[str, pa.RecordBatch]]:
            first = 0
            for shard, rows in kept:
                wanted = rows[-first % step :: step]
                first += len(rows)
                with VerifiedFile(self.workspace.resolve(shard)) as file:
                    names = columns(file.schema_arrow, shard.name)
                    for batch in file.iter_batches(1_000, columns=list({"row": None} | dict.fromkeys(names))):
                        is_wanted = np.isin(batch["row"].to_numpy(), wanted)
                        yield shard.name, batch.filter(pa.array(is_wanted)).select(names)

        sampled = -(-total // step)
        yield from track_by_size("documents of the sample", batches(), sampled, lambda batch: batch[1].num_rows)


@lru_cache(maxsize=SAMPLED_SHARDS)
def _has_a_document_of(root: str, path: str, fingerprint: str) -> bool:
    """Return whether a shard's documents have a text in common with those of before; True if these are gone."""
    workspace, (shard, _) = Workspace(root), shard_and_tag(path) or ("", "")
    before = f"{shard}.{fingerprint[:16]}.parquet"
    if not workspace.exists(workspace.root / before):
        return True
    own, others = (
        read_table(workspace.root / name, columns=["content_hash"])["content_hash"] for name in (path, before)
    )
    return bool(pc.any(pc.is_in(own, value_set=others.combine_chunks())).as_py())


def _fitted(workspace: Workspace) -> list[Manifest]:
    found = (read_manifest(path) for path in workspace.files("fitted/*.json"))
    return [manifest for manifest in found if manifest is not None]


def fitted_on_other_files(workspace: Workspace, shards: Container[str]) -> str:
    """Return what to say of a workspace whose models were fitted on other files than any of these; else nothing."""
    earlier = {name: None for manifest in _fitted(workspace) for name in manifest.fitted_on}
    if not earlier or any(name in shards for name in earlier):
        return ""
    return another_corpus(list(earlier))


def another_corpus(earlier: Sequence[str]) -> str:
    """Return what to say when what was fitted on these shards is fitted again, because the source has none of them.

    >>> another_corpus(["a", "b", "c", "d"])[:83]
    'another corpus than before: what was fitted on a, b, c, ... is fitted again on this'
    """
    some = ", ".join(earlier[:3]) + (", ..." if len(earlier) > 3 else "")
    return (
        f"another corpus than before: what was fitted on {some} is fitted again on this one, and the dataset is "
        "replaced; to keep both, give each a workspace of its own"
    )


def sampled_shards(workspace: Workspace, shards: list[str], *, refit: Container[str] = ()) -> list[str]:
    """Return the shards that a fit reads: evenly spaced ones, and those that an earlier fit was made on.

    Parameters
    ----------
    workspace
        The workspace of the corpus.
    shards
        The names of all shards.
    refit
        Stages whose earlier fits do not count, because they are made again.
    """
    every = max(1, -(-len(shards) // SAMPLED_SHARDS))
    manifests = [manifest for manifest in _fitted(workspace) if manifest.key.stage not in refit]
    earlier = {name for manifest in manifests for name in manifest.fitted_on}
    return [name for index, name in enumerate(shards) if index % every == 0 or name in earlier]
