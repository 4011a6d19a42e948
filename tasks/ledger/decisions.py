"""Tell what every stage decided on one document, with the numbers by which it did."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel

from fineweb_mask.models.analysis.vectors import unit_rows
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.selection import SelectionSettings
from fineweb_mask.models.standing import edge, margin, standing
from fineweb_mask.tasks.ledger.lookup import Gone, find_texts
from fineweb_mask.tasks.reporting.samples import DocumentRef
from fineweb_mask.tasks.selection.inputs.shard_documents import read_vectors
from fineweb_mask.tasks.storage.atomic import atomic_write
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.references import COUNTED, NEAR, SAME_URL, ShardFiles, StageFile, digest
from fineweb_mask.tasks.workspace.stage_parquet import open_parquet, take_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

KEPT, DROPPED, NOT_KNOWN = "kept", "dropped", "not known"
SELECTED, NOT_SELECTED = "selected", "not selected"
BY_GAIN = "mean_field"
"""The solver whose inclusion tells the marginal gain."""
SHOWN_CHARACTERS = 200
CACHED = "ledger"
"""Folder of the workspace's cache for what later calls read again: vectors of selected documents."""
MOST_NUMBERS = 2**29
"""Numbers of the selected documents' vectors (1 GiB), above which the nearest is not looked for."""
VECTORS_AT_ONCE = 65_536


class Decision(BaseModel):
    """What one stage decided on a document."""

    stage: str
    decision: str
    reason: str
    numbers: dict[str, Any] = {}


class Explanation(BaseModel):
    """Every stage's decision on one document."""

    asked: str
    shard: str
    row: int | None = None  # of the shard's documents; None: ingest dropped it
    source_row: int
    id: str
    url: str | None = None
    text: str = ""  # its beginning
    outcome: str  # selected, not selected, not selected from yet or dropped
    decisions: list[Decision]


class Corpus(NamedTuple):
    """What the last run of a workspace made."""

    workspace: Workspace
    settings: PipelineSettings
    shards: list[ShardFiles]

    def name(self, ref: DocumentRef) -> str:
        """Return what a document is called in a sentence."""
        [found] = take(self.workspace, self.shards[ref.shard].documents, ref.row, ["url", "id"])
        return f"{found['url'] or found['id']} ({self.shards[ref.shard].name} row {ref.row:,})"


def take(workspace: Workspace, file: StageFile, row: int, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the values of one row of a stage's file; of a file at a URL, its row group alone is downloaded."""
    return list(take_rows(workspace.root / file.path, np.array([row]), columns).to_pylist())


def explain(corpus: Corpus, ref: DocumentRef, asked: str) -> Explanation:
    """Return every stage's decision on a document that ingest kept."""
    shard = corpus.shards[ref.shard]
    counted = ["n_chars", "token_count", "language", "language_score"]
    columns = ["id", "url", "source_row", "text", "content_hash", *counted]
    [document] = take(corpus.workspace, shard.documents, ref.row, columns)
    numbers = {name: document[name] for name in counted if document.get(name) is not None}
    said = f"{document['n_chars']:,} characters" + (
        f", {document['token_count']:,} tokens" if document["token_count"] is not None else ""
    )
    decisions = [Decision(stage="ingest", decision=KEPT, reason=said, numbers=numbers)]
    decisions.append(repeated := _deduplicated(corpus, ref, document["content_hash"]))
    if shard.scores.path and repeated.decision == KEPT:
        [row] = take(corpus.workspace, shard.scores, ref.row)
        decisions.append(Decision(stage="score", decision=KEPT, **_scored(corpus, row)))
    if shard.embeddings.path and repeated.decision == KEPT:
        decisions.append(embedded := _embedded(corpus, ref))
        if shard.masks.path and embedded.decision == KEPT:
            decisions.append(judged(corpus, ref))
    last = next((one for one in decisions if one.decision == DROPPED), decisions[-1])
    outcome = last.decision if last.decision in {DROPPED, SELECTED, NOT_SELECTED} else "not selected from yet"
    return Explanation(
        asked=asked,
        shard=shard.name,
        row=ref.row,
        source_row=document["source_row"],
        id=document["id"],
        url=document["url"],
        text=str(document["text"])[:SHOWN_CHARACTERS],
        outcome=outcome,
        decisions=decisions,
    )


def explain_gone(corpus: Corpus, gone: Gone, asked: str) -> Explanation:
    """Return the decision of ingest on a row that it dropped and wrote aside."""
    reason = _why_dropped(corpus.settings, gone)
    return Explanation(
        asked=asked,
        shard=corpus.shards[gone.shard].name,
        source_row=gone.source_row,
        id=gone.id,
        url=gone.url,
        text=(gone.text or "")[:SHOWN_CHARACTERS],
        outcome=DROPPED,
        decisions=[Decision(stage="ingest", decision=DROPPED, reason=reason, numbers={"reason": gone.reason})],
    )


def _why_dropped(settings: PipelineSettings, gone: Gone) -> str:
    """Return ingest's reason with what is known of the row, and the setting that it is of, in words."""
    ingest, reason = settings.ingest, gone.reason
    more = {
        "too_short": f"{len(gone.text or ''):,} characters, ingest.min_chars is {ingest.min_chars:,}",
        "wrong_language": f"ingest.languages is {', '.join(ingest.languages)}",
        "low_language_score": f"ingest.min_language_score is {ingest.min_language_score}",
        "duplicate": "an earlier row of its file has the same text",
        "known": f"{gone.twin} of ingest.against has its text",
        "benchmark": f"it holds {gone.twin} of ingest.decontaminate",
    }
    return f"{reason}: {more[reason]}" if reason in more else reason


def _deduplicated(corpus: Corpus, ref: DocumentRef, content_hash: bytes) -> Decision:
    """Return whether a document is a copy of one that is kept, or how many copies of it are dropped."""
    shard, ingest = corpus.shards[ref.shard], corpus.settings.ingest
    if not shard.duplicates.fingerprint:
        return Decision(stage="dedup", decision=NOT_KNOWN, reason="the run has not come so far")
    if (listed := _listed(corpus, shard, ref.row)) is None:
        copies = sum(_copies_of(corpus, one, shard.name, ref.row) for one in corpus.shards)
        said = f"{copies:,} near-duplicates of it are dropped" if copies else "no copy of another document"
        reason = said if ingest.compares_shards else "copies were not looked for"
        return Decision(stage="dedup", decision=KEPT, reason=reason, numbers={"copies_dropped": copies})
    if listed.get("twin_shard") is None:
        found = find_texts(corpus.workspace, corpus.shards, [content_hash])[content_hash]
        kept = next((one for one in found if _listed(corpus, corpus.shards[one.shard], one.row) is None), None)
        kind, said, similarity = "duplicate", "the same text as", 1.0
    else:
        places = {one.name: index for index, one in enumerate(corpus.shards)}
        similarity, twin = listed["similarity"], places.get(listed["twin_shard"])
        kept = None if twin is None else DocumentRef(twin, listed["twin_row"])
        kind = SAME_URL if similarity is None else NEAR
        said = "the URL of" if similarity is None else f"near-duplicate ({similarity:.2f} of the shingles) of"
    elsewhere = "another corpus" if listed.get("twin_shard") else "another document"
    name = elsewhere if kept is None else f"{corpus.name(kept)}, which is kept"
    numbers = {"reason": kind, "similarity": similarity}
    if kept is not None:
        numbers |= {"kept_shard": corpus.shards[kept.shard].name, "kept_row": kept.row}
    return Decision(stage="dedup", decision=DROPPED, reason=f"{said} {name}", numbers=numbers)


def _listed(corpus: Corpus, shard: ShardFiles, row: int) -> dict[str, Any] | None:
    """Return the row of a shard's list of duplicates on a document, or None if it is kept."""
    if not shard.duplicates.rows:
        return None
    listed = take_rows(corpus.workspace.resolve(shard.duplicates), np.array([row])).to_pylist()
    return dict(listed[0]) if listed else None


def _copies_of(corpus: Corpus, shard: ShardFiles, twin_shard: str, twin_row: int) -> int:
    if not any(map(shard.duplicates.details.get, COUNTED)):
        return 0
    twins = read_table(corpus.workspace.resolve(shard.duplicates), columns=["twin_shard", "twin_row"])
    is_of_it = pc.and_(pc.equal(twins["twin_shard"], twin_shard), pc.equal(twins["twin_row"], twin_row))
    return int(pc.sum(is_of_it).as_py() or 0)


def _scored(corpus: Corpus, values: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of a document in words, and with the share of the corpus's documents below each."""
    shares = _percentiles(corpus, {name: one for name, one in values.items() if isinstance(one, float)})
    numbers = {name: {"score": values[name], "better_than": share} for name, share in shares.items()}
    parts = [f"{name} {values[name]:.2f}, better than {share:.0%}" for name, share in shares.items()]
    return {"reason": "; ".join([*parts[-1:], *parts[:-1]]), "numbers": numbers}  # the quality is the last column


def _percentiles(corpus: Corpus, values: dict[str, float]) -> dict[str, float]:
    """Return the share of all scored documents below each value, by the score's name."""
    counted, rows = dict.fromkeys(values, 0), 0
    for shard in corpus.shards:
        raise_if_stopped()
        if shard.scores.path:
            with open_parquet(corpus.workspace.root / shard.scores.path) as file:
                table = file.read(columns=list(values))
            rows += table.num_rows
            for name, value in values.items():
                counted[name] += int(np.count_nonzero(table[name].to_numpy() < value))
    return {name: count / max(1, rows) for name, count in counted.items()}


def _embedded(corpus: Corpus, ref: DocumentRef) -> Decision:
    shard = corpus.shards[ref.shard]
    dimensions = {"dimensions": shard.embeddings.details.get("dimensions")}
    if shard.embeddings.details.get("bad_vectors"):
        [row] = take(corpus.workspace, shard.embeddings, ref.row, ["embedding"])
        if row["embedding"] is None:
            reason = "bad_vector: the encoder gives its text no vector"
            return Decision(stage="embed", decision=DROPPED, reason=reason, numbers={"reason": "bad_vector"})
    reason = f"a vector of {dimensions['dimensions']} dimensions"
    return Decision(stage="embed", decision=KEPT, reason=reason, numbers=dimensions)


class Competitors(NamedTuple):
    """The documents that one is selected among."""

    inclusion: NDArray[np.float32]  # (n,)
    selected: NDArray[np.bool_]  # (n,)
    masses: NDArray[np.int64]  # (n,) what each takes of the budget
    refs: NDArray[np.int64]  # (n, 2) shard and row


def judged(corpus: Corpus, ref: DocumentRef) -> Decision:
    """Return whether a document is selected, its rank, and the budget from which it would be."""
    settings, found = corpus.settings.selection, _competitors(corpus, ref)
    place = int(np.flatnonzero((found.refs == np.array(ref)).all(axis=1))[0])
    own, is_selected = float(found.inclusion[place]), bool(found.selected[place])
    where, taken = standing(found.inclusion, found.masses, place), int(found.selected.sum())
    numbers: dict[str, Any] = {"inclusion": own, "rank": where.rank, "of": where.of, "selected_of_them": taken}
    parts = [f"rank {where.rank:,} of {where.of:,}, {taken:,} of which fill the budget"]
    near = _nearest_selected(corpus, ref, found)
    if _is_left_out(settings, own, is_selected, near):
        parts.append(
            f"a better document has a cosine of {settings.near_duplicates:g} or more with it, so that it may not be "
            "selected (selection.near_duplicates)"
        )
    else:
        if settings.solver == BY_GAIN:
            above = margin(own, edge(found.inclusion, found.selected))
            numbers["marginal_gain_above_threshold"] = round(above, 4)
            parts.append(
                f"its marginal gain is {abs(above):.2f} deviations {'above' if above >= 0 else 'below'} the threshold"
            )
        numbers["selected_from_ratio"] = round(where.share, 4)
        setting = "select_ratio" if settings.budget is None else "a budget of this share"
        parts.append(f"{'is' if is_selected else 'would be'} selected from {setting} {where.share:.2g}")
    if near is not None:
        numbers |= {
            "nearest_selected_cosine": round(near[1], 4),
            "nearest_selected_shard": corpus.shards[near[0].shard].name,
        }
        numbers["nearest_selected_row"] = near[0].row
        parts.append(f"the nearest selected document has a cosine of {near[1]:.2f} with it: {corpus.name(near[0])}")
    decision = SELECTED if is_selected else NOT_SELECTED
    return Decision(stage="select", decision=decision, reason="; ".join(parts), numbers=numbers)


def _is_left_out(
    settings: SelectionSettings, inclusion: float, is_selected: bool, near: tuple[DocumentRef, float] | None
) -> bool:
    """Return whether a document is known to be a near-duplicate of a better one, which may not be selected."""
    if is_selected or settings.near_duplicates is None:
        return False
    is_like_a_selected_one = near is not None and near[1] >= settings.near_duplicates
    return is_like_a_selected_one or (settings.solver == BY_GAIN and inclusion == 0)


def _competitors(corpus: Corpus, ref: DocumentRef) -> Competitors:
    """Return the documents of a document's block."""
    shard = corpus.shards[ref.shard]
    [own] = take(corpus.workspace, shard.masks, ref.row, ["block"])
    parts = []
    for index, other in enumerate(corpus.shards):
        raise_if_stopped()
        if not other.masks.path or other.masks.fingerprint != shard.masks.fingerprint:
            continue
        with open_parquet(corpus.workspace.root / other.masks.path) as file:
            masks = file.read(columns=["selected", "inclusion", "block"])
        inside = pc.equal(masks["block"], own["block"])
        rows = np.flatnonzero(np.asarray(inside.to_numpy(), dtype=bool))
        inclusion, selected = (masks[name].to_numpy()[rows] for name in ("inclusion", "selected"))
        masses = _masses(corpus, other)[rows]
        parts.append((inclusion, selected, masses, np.column_stack([np.full(len(rows), index), rows])))
    return Competitors(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _masses(corpus: Corpus, shard: ShardFiles) -> NDArray[np.int64]:
    """Return what each document of a shard takes of the budget, (rows,)."""
    from fineweb_mask.models.documents import token_counts

    if corpus.settings.selection.budget_by == "documents":
        return np.ones(shard.rows, dtype=np.int64)
    with open_parquet(corpus.workspace.root / shard.documents.path) as file:
        counts = file.read(columns=["token_count", "n_chars"])
    return token_counts(counts["token_count"], counts["n_chars"])


def _nearest_selected(corpus: Corpus, ref: DocumentRef, among: Competitors) -> tuple[DocumentRef, float] | None:
    """Return the selected document of the same block that is most like another."""
    [row] = take(corpus.workspace, corpus.shards[ref.shard].embeddings, ref.row, ["embedding"])
    own = unit_rows(np.array([row["embedding"]], dtype=np.float32))[0]
    chosen = among.refs[among.selected]
    others = np.flatnonzero((chosen != np.array(ref)).any(axis=1))
    if not len(others) or len(chosen) * len(own) > MOST_NUMBERS:
        return None
    vectors = _selected_vectors(corpus, chosen)
    starts = range(0, len(chosen), VECTORS_AT_ONCE)
    cosines = np.concatenate([vectors[start : start + VECTORS_AT_ONCE].astype(np.float32) @ own for start in starts])
    best = others[np.argmax(cosines[others])]
    return DocumentRef(*chosen[best].tolist()), float(cosines[best])


def _selected_vectors(corpus: Corpus, chosen: NDArray[np.int64]) -> NDArray[np.float16]:
    """Return the unit vectors of documents at shards and rows, (n, d); after the first call, from a file in the cache.

    Those of an earlier selection are removed.
    """
    folder = corpus.workspace.cache / CACHED
    state = digest([[shard.masks.fingerprint, shard.embeddings.fingerprint] for shard in corpus.shards])[:16]
    path = folder / f"selected-{state}-{digest(chosen.tobytes().hex())[:16]}.npy"
    if not path.is_file():
        for old in folder.glob("selected-*.npy"):
            if not old.name.startswith(f"selected-{state}"):
                old.unlink(missing_ok=True)
        parts = []
        for index in np.unique(chosen[:, 0]).tolist():
            found = read_vectors(corpus.workspace, corpus.shards[index], chosen[chosen[:, 0] == index, 1])
            parts += [unit_rows(vectors).astype(np.float16) for _, vectors in found]
        with atomic_write(path) as partial, partial.open("wb") as stream:
            np.save(stream, np.concatenate(parts))
    vectors: NDArray[np.float16] = np.load(path, mmap_mode="r")
    return vectors
