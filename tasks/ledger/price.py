"""Price files that may join a corpus: what a sample of them, and as large a share of ours, say of the whole."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.analysis.groups import telling_words
from fineweb_mask.models.analysis.vectors import nearest_cosines, unit_rows
from fineweb_mask.models.dedup.minhash import Sketch, band_keys, shingle_sets
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.ledger.price import (
    MOST_DOCUMENTS,
    Documents,
    Draws,
    Estimate,
    Known,
    Rate,
    Topics,
    cost,
    mean,
    priced,
    share,
)
from fineweb_mask.models.ledger.teaching import SETS, Teaching
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.settings import IngestSettings, PipelineSelectionSettings
from fineweb_mask.tasks.inference.gpu import gpu_slot, torch_device
from fineweb_mask.tasks.ledger.candidate import Drawn
from fineweb_mask.tasks.ledger.price_page import price_page
from fineweb_mask.tasks.reporting.page import PageJob
from fineweb_mask.tasks.reporting.samples import DocumentRef, evenly_spaced, vectors_at
from fineweb_mask.tasks.selection.inputs.shard_documents import read_columns, read_vectors
from fineweb_mask.tasks.source.texts import documents_of
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.storage.remote.copies import local_copies
from fineweb_mask.tasks.workspace.job import Dependencies, Stage, stage_task
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile, digest
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows, open_parquet
from fineweb_mask.tasks.workspace.workspace import Workspace

MOST_SHARDS = 64
"""Shards of ours that documents are drawn from."""
FEWEST = 100
"""Documents of ours, and of theirs, from which anything is said."""
ELIGIBLE, DROPPED_BY_INGEST, COPY, EQUAL, NEAR, NO_VECTOR = range(6)
"""What became of a row of the sample."""
NAMED_CHARACTERS = 1_500
DROPPED_FOLDER = "dropped"
"""Of the rows that ingest dropped, in the workspace of the sample."""


class CandidateJob(PageJob):
    """Price a sample that was ingested, scored and embedded in a workspace of its own."""

    stage: ClassVar[Stage] = Stage("pricing", version=1, folders=("price",))
    sample: str  # the workspace of the sample
    theirs: list[ShardFiles]
    drawn: Drawn
    ours: list[ShardFiles]
    signatures: list[StageFile]  # of ours, where near-duplicates are found by words
    settings: PipelineSelectionSettings
    ingest: IngestSettings
    rates: list[Rate]  # of ingesting, scoring and embedding a shard of ours
    is_own_rate: bool = True  # else those of the sample

    def depends_on(self) -> Dependencies:
        """Return the settings, and the fingerprints of ours and of the sample."""
        files = [
            [shard.documents, shard.scores, shard.embeddings, shard.duplicates] for shard in (*self.ours, *self.theirs)
        ]
        settings = [self.settings.digested(), self.ingest.digested(), list(self.drawn), digest(self.rates)]
        return Dependencies(settings=settings, inputs=[[file.fingerprint for file in shard] for shard in files])


class Sampled(NamedTuple):
    """What became of the n rows of a sample, of which m may be selected."""

    status: NDArray[np.int64]  # (n,)
    files: NDArray[np.int64]  # (n,)
    reasons: Counter[str]  # of rows that ingest dropped
    tokens: NDArray[np.int64]  # (n,), 0 of rows that are not embedded
    rows: NDArray[np.int64]  # (m,)
    documents: Documents  # m
    texts: list[str]  # m


@stage_task
def price_candidate(job: CandidateJob) -> None:
    """Select from the sample and as large a share of ours together, and write the page.

    Raises
    ------
    DataError
        If there are too few documents of ours to say anything.
    """
    sampled = read_sample(job)
    total = sum(shard.rows - shard.duplicates.rows for shard in job.ours)
    needed = job.drawn.fraction * total
    ours, texts = read_ours(job.workspace, job.ours, min(total, max(FEWEST, round(needed)), 4 * MOST_DOCUMENTS))
    if len(texts) < FEWEST:
        raise DataError(f"the workspace has {len(texts)} documents to select from, at least {FEWEST} are needed")
    details = {"total": total, **estimated(job, sampled, ours, texts, needed)}
    job.write(price_page(details), {"rows": job.drawn.rows, **details})


def read_sample(job: CandidateJob) -> Sampled:
    """Read what was made of the sample, and find what is equal or like one of ours; each shard of ours is read once."""
    workspace, first, parts = Workspace(job.sample), 0, list[_Part]()
    reasons, status, files = Counter[str](), list[NDArray[np.int64]](), list[NDArray[np.int64]]()
    for number, shard in enumerate(job.theirs):
        part = _read_part(workspace, shard, first)
        parts.append(part)
        reasons.update(part.reasons)
        status.append(part.status)
        files.append(np.full(len(part.status), number))
        first += len(part.status)
    of_rows = np.concatenate(status)
    rows = np.concatenate([part.rows for part in parts])
    documents = Documents(*(np.concatenate(column) for column in zip(*(part.documents for part in parts), strict=True)))
    texts = [text for part in parts for text in part.texts]
    hashes = pa.concat_arrays([part.hashes for part in parts])
    near = np.zeros(len(rows), dtype=np.bool_)
    ingest, words = job.ingest, pa.array(texts, pa.string())
    if ingest.near_dedup == "minhash":
        sketch = Sketch.for_threshold(ingest.least_similarity)
        near = sharing_words(job.workspace, job.ours, job.signatures, words, sketch, ingest.least_similarity)
    elif len(rows):
        least = ingest.least_similarity if ingest.near_dedup == "semantic" else job.settings.near_duplicates.threshold
        near = nearest_of_ours(job.workspace, job.ours, documents.vectors) >= least
    equal = equal_to_ours(job.workspace, job.ours, hashes)
    tokens = np.zeros(len(of_rows), dtype=np.int64)
    tokens[rows] = documents.tokens
    of_rows[rows[near]] = NEAR
    of_rows[rows[equal]] = EQUAL
    stays = np.ones(len(rows), dtype=np.bool_)
    if ingest.exact_dedup == "corpus":
        stays &= ~equal
    if ingest.near_dedup != "off":
        stays &= ~near
    kept = [text for text, stay in zip(texts, stays, strict=True) if stay]
    return Sampled(of_rows, np.concatenate(files), reasons, tokens, rows[stays], documents.take(stays), kept)


class _Part(NamedTuple):
    """A shard of the sample."""

    status: NDArray[np.int64]  # of its rows
    reasons: Counter[str]
    rows: NDArray[np.int64]  # in the sample, of the documents that may be selected
    documents: Documents
    texts: list[str]
    hashes: pa.Array


def _read_part(workspace: Workspace, shard: ShardFiles, first: int) -> _Part:
    table = read_table(workspace.resolve(shard.documents), columns=["source_row", "text", "content_hash"])
    places, columns = table["source_row"].to_numpy().astype(np.int64), read_columns(workspace, shard)
    status = np.full(shard.documents.details["rows_in"], DROPPED_BY_INGEST, dtype=np.int64)
    dropped = workspace.root / shard.documents.path.replace("documents/", f"{DROPPED_FOLDER}/", 1)
    gone = read_table(dropped, columns=["source_row", "reason"]).to_pylist() if dropped.is_file() else []
    copies = [one["source_row"] for one in gone if one["reason"] == "duplicate"]
    reasons = Counter(
        {name: count for name, count in shard.documents.details["dropped"].items() if name != "duplicate"}
    )
    status[places] = np.where(columns.candidate, ELIGIBLE, NO_VECTOR)
    status[[*copies, *places[duplicate_rows(workspace, shard.duplicates)]]] = COPY
    rows = columns.candidate.nonzero()[0]
    vectors = [unit_rows(part) for _, part in read_vectors(workspace, shard, rows)]
    dimensions = int(shard.embeddings.details["dimensions"])
    chosen = table.take(pa.array(rows))
    return _Part(
        status,
        reasons,
        first + places[rows],
        Documents(
            np.concatenate([np.empty((0, dimensions), np.float32), *vectors]),
            columns.quality[rows],
            columns.tokens[rows],
        ),
        chosen["text"].to_pylist(),
        chosen["content_hash"].combine_chunks(),
    )


def read_ours(workspace: Workspace, shards: Sequence[ShardFiles], count: int) -> tuple[Documents, list[str]]:
    """Draw documents of ours that may be selected, evenly over some shards, and read their texts, too."""
    dice = np.random.default_rng(0)
    chosen = [shards[place] for place in evenly_spaced(len(shards), MOST_SHARDS)]
    sizes = np.array([shard.rows for shard in chosen], dtype=np.int64)
    found, texts = list[Documents](), list[str]()
    left, wanted = int(sizes.sum()), float(count)
    for place, shard in enumerate(track("shards of ours", chosen)):
        with local_copies():
            columns = read_columns(workspace, shard)
            rows = columns.candidate.nonzero()[0]
            most = round(wanted * sizes[place] / max(1, left))
            left, wanted = left - int(sizes[place]), wanted - min(most, len(rows))
            rows = np.sort(dice.choice(rows, min(most, len(rows)), replace=False))
            vectors = vectors_at(workspace, [shard], [DocumentRef(0, int(row)) for row in rows])
            if len(rows):
                found.append(Documents(unit_rows(vectors), columns.quality[rows], columns.tokens[rows]))
                texts += documents_of(workspace, shard.documents, rows, ["text"])["text"].to_pylist()
    if not found:
        raise DataError("the workspace has no documents to select from: run its recipe first")
    return Documents(*(np.concatenate(column) for column in zip(*found, strict=True))), texts


def estimated(
    job: CandidateJob, sampled: Sampled, ours: Documents, texts: Sequence[str], needed: float
) -> dict[str, Any]:
    """Return what is expected of all of the candidate, as JSON values: each with the ends of its interval."""
    drawn, settings = job.drawn, job.settings
    fraction, is_some = drawn.fraction, len(drawn.files) < drawn.of_files
    different = sampled.status != COPY
    files = sampled.files if is_some else None

    def of_rows(hits: NDArray[np.bool_], among: NDArray[np.bool_] = different) -> Estimate:
        return share(hits[among], fraction, None if files is None else files[among])

    theirs, status = sampled.documents, sampled.status
    rows = np.flatnonzero(different)
    places = np.full(len(status), -1, dtype=np.int64)
    places[sampled.rows] = np.arange(len(sampled.rows))
    new = Known.of(ours.vectors).are_new(theirs.vectors)
    topics = Topics.of(theirs.vectors) if len(new) else Topics(ours.vectors[:0])
    is_new = np.zeros(len(status), dtype=np.bool_)
    is_new[sampled.rows] = new
    found: dict[str, Estimate | None] = {
        "dropped": of_rows(status == DROPPED_BY_INGEST),
        "equal": of_rows(status == EQUAL),
        "near": of_rows(status == NEAR),
        "new_documents": of_rows(is_new),
        "new_clusters": topics.new_ones(theirs.vectors, new, fraction) if len(new) else Estimate(0.0, 0.0, 0.0),
    }
    remarks, joined = list[str](), None
    if len(theirs.quality) >= FEWEST:
        groups = np.arange(len(rows)) if files is None else files[rows]
        draws = Draws.of(len(texts), groups, needed)
        teaching = Teaching(ours, theirs, [*texts, *sampled.texts], settings.near_duplicates.threshold)
        can_tell = teaching.can_tell(settings.select_ratio * draws.share / 2)
        if not can_tell:
            remarks.append(
                "What a selection teaches is not measured: the selections from the sample have too few tokens."
            )
        device = torch_device(settings.device)
        with gpu_slot(device):
            result = priced(
                ours,
                theirs,
                places[rows],
                draws,
                settings,
                fraction,
                device=str(device),
                measure=teaching.measure if can_tell else None,
            )
        joined, chosen = result.whole, places[rows][draws.wholes[0][1]]
        found |= {"kept": result.kept, "gain": result.gain}
        found |= {f"teaches_{name}": one for name, one in zip(SETS, result.measured, strict=False)}
        chosen = chosen[chosen >= 0]
        kept = joined.kept[len(draws.wholes[0][0]) :]
    else:
        most = of_rows(np.isin(np.arange(len(status)), sampled.rows))
        found |= {"kept": Estimate(settings.select_ratio * most.value, 0.0, most.high), "gain": None}
        remarks.append(
            f"Only {len(theirs.quality)} documents of the sample can be selected, too few to say what they add: give "
            "a larger --sample."
        )
        chosen, kept = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_)
    tokens = mean(sampled.tokens, fraction, files).times(drawn.documents)
    found |= {"tokens": tokens, "seconds": cost(job.rates, tokens)}
    copies = int((~different).sum())
    if copies:
        remarks.append(
            f"{copies:,} of {drawn.rows:,} rows of the sample are copies of others of it. Of copies in the whole, a "
            "sample finds few: all shares are of documents that are no copies of each other."
        )
    if is_some:
        remarks.append(
            f"Documents were drawn from {len(drawn.files):,} of {drawn.of_files:,} files, at random by size."
        )
    remarks += [f"left out: {reason}" for reason in drawn.unread]
    remarks += _ignored(settings)
    return {
        "documents": drawn.documents,
        "sample": drawn.rows,
        "fraction": fraction,
        "near_by": job.ingest.near_dedup if job.ingest.near_dedup != "off" else "vectors",
        "estimates": {name: None if one is None else list(one) for name, one in found.items()},
        "reasons": dict(sampled.reasons.most_common()),
        "copies": copies,
        "clusters": _clusters(topics, sampled, new, chosen, kept),
        "is_own_rate": job.is_own_rate,
        "remarks": remarks,
    }


def _ignored(settings: PipelineSelectionSettings) -> list[str]:
    """Return which settings of the selection are not those of the experiment."""
    told = {
        "selection.solver: the objective is maximised by mean_field": settings.solver != "mean_field",
        "selection.groups: one budget for all": settings.groups is not None,
        "selection.scope and block_size: all documents are selected from together": settings.scope == "global",
    }
    return [f"Not as the recipe says: {text}." for text, holds in told.items() if holds]


def _clusters(
    topics: Topics, sampled: Sampled, new: NDArray[np.bool_], chosen: NDArray[np.int64], kept: NDArray[np.bool_]
) -> list[dict[str, Any]]:
    """Return the clusters of theirs, those with most new documents first, each named by its words."""
    if not len(new):
        return []
    of, clusters = topics.members(sampled.documents.vectors), len(topics.centres)
    words = telling_words([text[:NAMED_CHARACTERS] for text in sampled.texts], of, clusters)
    found = list[dict[str, Any]]()
    for place in np.unique(of).tolist():
        own = of[chosen] == place
        nearest = np.flatnonzero(of == place)
        best = nearest[(sampled.documents.vectors[nearest] @ topics.centres[place]).argmax()]
        found.append(
            {
                "words": words[place],
                "documents": len(nearest),
                "new": float(new[nearest].mean()),
                "kept": float(kept[own].mean()) if own.any() else None,
                "example": sampled.texts[best][:NAMED_CHARACTERS],
            }
        )
    return sorted(found, key=lambda one: (-one["new"], -one["documents"], one["words"]))


MOST_PAIRS = 2_000
"""Documents of a shard that are compared word for word; more share a band only with boilerplate."""


def equal_to_ours(workspace: Workspace, shards: Sequence[ShardFiles], hashes: pa.Array) -> NDArray[np.bool_]:
    """Return which texts, by their hashes, are in one of our shards: (n,) bool."""
    found = [pa.array([], hashes.type)]
    for shard in track("shards", shards):
        with local_copies():
            theirs = read_table(workspace.resolve(shard.documents), columns=["content_hash"])["content_hash"]
        found.append(theirs.filter(pc.is_in(theirs, value_set=hashes)).combine_chunks().cast(hashes.type))
    return np.asarray(
        pc.is_in(hashes, value_set=pa.concat_arrays(found)).to_numpy(zero_copy_only=False), dtype=np.bool_
    )


def nearest_of_ours(
    workspace: Workspace, shards: Sequence[ShardFiles], vectors: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Return the largest cosine of each unit vector, (n, d), with one of our documents: (n,)."""
    closest = np.full(len(vectors), -1, dtype=np.float32)
    for shard in track("shards", shards):
        with local_copies():
            rows = read_columns(workspace, shard).candidate.nonzero()[0]
            for _, part in read_vectors(workspace, shard, rows):
                np.maximum(closest, nearest_cosines(vectors, unit_rows(part)), out=closest)
    return closest


def sharing_words(
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    signatures: Sequence[StageFile],
    texts: pa.Array,
    sketch: Sketch,
    threshold: float,
) -> NDArray[np.bool_]:
    """Return which texts have a Jaccard similarity from a threshold on with one of ours, as ingest finds them: (n,)."""
    found, sets = np.zeros(len(texts), dtype=np.bool_), shingle_sets(texts, sketch.words)
    bands = band_keys(texts, sketch)
    keys, owners = bands.keys.ravel(), np.repeat(bands.rows, bands.keys.shape[1])
    order = np.argsort(keys, kind="stable")
    keys, owners = keys[order], owners[order]
    if not len(keys):  # no text has enough words
        return found
    for shard, file in track("shards", list(zip(shards, signatures, strict=True))):
        with local_copies():
            for row, text in _sharing(workspace, shard, file, keys):
                own = shingle_sets(pa.array([text], pa.string()), sketch.words)[0]
                same = slice(*np.searchsorted(keys, [row.min(), row.max() + np.uint64(1)]))
                among = np.unique(owners[same][np.isin(keys[same], row)])
                for place in among[~found[among]]:
                    common = len(np.intersect1d(own, sets[place], assume_unique=True))
                    found[place] = common >= threshold * (len(own) + len(sets[place]) - common)
    return found


def _sharing(
    workspace: Workspace, shard: ShardFiles, file: StageFile, keys: NDArray[np.uint64]
) -> list[tuple[NDArray[np.uint64], str]]:
    """Return the keys that a document of a shard shares, and its text, for each that shares one."""
    shared, rows = list[NDArray[np.uint64]](), list[NDArray[np.int64]]()
    with open_parquet(workspace.root / file.path) as opened:
        for group in range(opened.num_row_groups):
            table = opened.read_row_group(group, columns=["key", "row"])
            own = table["key"].to_numpy()
            hits = keys[np.searchsorted(keys, own).clip(max=len(keys) - 1)] == own
            shared.append(own[hits])
            rows.append(table["row"].to_numpy()[hits].astype(np.int64))
    key, row = np.concatenate([np.empty(0, np.uint64), *shared]), np.concatenate([np.empty(0, np.int64), *rows])
    wanted = np.unique(row)[:MOST_PAIRS]
    if not len(wanted):
        return []
    texts = documents_of(workspace, shard.documents, wanted, ["text"])["text"].to_pylist()
    return [(key[row == place], text) for place, text in zip(wanted, texts, strict=True)]
