"""Tell what would happen to a text that is not in the corpus: it passes ingest's filters, the models and the selection.

A row of the source that ingest dropped, and wrote nothing down of, passes the filters again, which then say why.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fineweb_mask.models.dedup.minhash import Sketch, band_keys, shingle_sets
from fineweb_mask.models.documents import conform, token_counts
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.ledger.standing import edge, margin, share_below, standing
from fineweb_mask.models.quality import combine
from fineweb_mask.models.quality.registry import columns_of
from fineweb_mask.models.selection.corpus.documents import Documents
from fineweb_mask.tasks.dedup.sort import read_range
from fineweb_mask.tasks.inference.encoder_pool import encoder_pool
from fineweb_mask.tasks.inference.scorers import batch_scores, groups_of, load_models
from fineweb_mask.tasks.ingest import IngestJob, document_filter
from fineweb_mask.tasks.ledger.decisions import (
    BY_GAIN,
    CACHED,
    DROPPED,
    KEPT,
    NOT_KNOWN,
    NOT_SELECTED,
    SELECTED,
    SHOWN_CHARACTERS,
    Corpus,
    Decision,
    Explanation,
    competitors,
    nearest,
    scored,
    take,
    why_dropped,
)
from fineweb_mask.tasks.ledger.lookup import SourceRow, find_texts
from fineweb_mask.tasks.reporting.samples import DocumentRef
from fineweb_mask.tasks.selection.corpus.policy_file import Models, check_has_rule, export_rule
from fineweb_mask.tasks.selection.inputs.shard_documents import random_keys, read_columns, read_vectors
from fineweb_mask.tasks.source.texts import documents_of
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.storage.remote.copies import local_copies
from fineweb_mask.tasks.workspace.references import StageFile, digest

NEAREST = 20
"""Documents whose fates tell that of a text like them."""
LARGEST_BLOCK = 20_000
"""Documents of a block in which the gain of a text is computed; the neighbours of more take minutes to find."""
LEAST_FIT = 0.95
"""R^2 from which the gains of a block are taken as explained."""
MOST_CANDIDATES = 1_000
"""Documents that share a band with a text, which are compared with it."""


class Judges(NamedTuple):
    """What decides on a text."""

    ingest: IngestJob  # of any shard
    models: Models | None  # None: they are not fitted, or a scorer makes the vectors
    rule: StageFile | None  # by which the whole corpus is selected from
    signatures: dict[str, StageFile]  # of each shard, as far as they are there


def filtered(job: IngestJob, batch: pa.RecordBatch, problem: str | None = None) -> tuple[str | None, Any]:
    """Return why ingest's filters drop a row by itself, with its twin, or None and the row as it would be kept."""
    settings = job.settings.model_copy(update={"exact_dedup": "off"})
    documents = document_filter(job.model_copy(update={"settings": settings}), 1)
    kept = documents.apply(batch, None if problem is None else pa.array([problem]))
    if kept.num_rows:
        return None, kept
    twin = documents.known[0][2] if documents.known else None
    return next(reason for reason, count in documents.dropped.items() if count), twin


def explain_source_row(corpus: Corpus, job: IngestJob, row: SourceRow, asked: str) -> Explanation:
    """Return why ingest dropped a row of the source, by its filters, and, if it passes them, by its text."""
    reason, found = filtered(job, row.batch, row.problem)
    values = {name: row.batch[name][0].as_py() for name in ("language", "language_score")}
    values |= {"text": (decoded := text_of(row.batch))}
    if reason is None:
        numbers: dict[str, Any] = {"reason": "duplicate"}
        said = why_dropped(corpus.settings, "duplicate", values)
        own = [index for index, shard in enumerate(corpus.shards) if shard.name == row.shard.name]
        same = find_texts(corpus.workspace, corpus.shards, found["content_hash"].to_pylist())
        if kept := [ref for refs in same.values() for ref in refs if ref.shard in own]:
            said += f": {corpus.name(kept[0])}"
            numbers |= {"kept_shard": row.shard.name, "kept_row": kept[0].row}
    else:
        said, numbers = why_dropped(corpus.settings, reason, values, found), {"reason": reason}
    return Explanation(
        asked=asked,
        shard=row.shard.name,
        source_row=row.row,
        id=row.batch["id"][0].as_py(),
        url=row.batch["url"][0].as_py(),
        text=decoded[:SHOWN_CHARACTERS],
        outcome=DROPPED,
        decisions=[Decision(stage="ingest", decision=DROPPED, reason=said, numbers=numbers)],
    )


def text_of(batch: pa.RecordBatch) -> str:
    """Return the text of a row, as far as it can be decoded."""
    value = batch["text"][0]
    return value.as_buffer().to_pybytes().decode(errors="replace") if value.is_valid else ""


def explain_text(corpus: Corpus, judges: Judges, text: str, asked: str) -> Explanation:
    """Return what every stage would decide on a text that is not in the corpus."""
    batch = conform(pa.record_batch({"text": [text]}), "text", "id", [])
    reason, found = filtered(judges.ingest, batch)
    if reason is not None:
        said = why_dropped(corpus.settings, reason, {"text": text}, found)
        decisions = [Decision(stage="ingest", decision=DROPPED, reason=said, numbers={"reason": reason})]
        return _explanation(asked, text, decisions)
    text = found["text"][0].as_py()
    said = f"{len(text):,} characters; of its language nothing is known"
    decisions = [Decision(stage="ingest", decision=KEPT, reason=said, numbers={"n_chars": len(text)})]
    decisions.append(_near(corpus, judges, text))
    if judges.models is None:
        reason = "the run has fitted no models, or a scorer makes the vectors"
        decisions.append(Decision(stage="score", decision=NOT_KNOWN, reason=reason))
    else:
        decisions += _judged(corpus, judges, judges.models, found)
    return _explanation(asked, text, decisions)


def _explanation(asked: str, text: str, decisions: list[Decision]) -> Explanation:
    dropped = any(one.decision == DROPPED for one in decisions)
    outcome = f"would be {DROPPED if dropped else decisions[-1].decision}"
    outcome = NOT_KNOWN if not dropped and decisions[-1].decision == NOT_KNOWN else outcome
    return Explanation(asked=asked, text=text[:SHOWN_CHARACTERS], outcome=outcome, decisions=decisions)


def _near(corpus: Corpus, judges: Judges, text: str) -> Decision:
    """Return the document of the corpus that a text is a near-duplicate of by MinHash, if that is looked for."""
    ingest = corpus.settings.ingest
    if ingest.near_dedup != "minhash":
        more = "; near-duplicates are found by its vector" if ingest.near_dedup == "semantic" else ""
        return Decision(stage="dedup", decision=KEPT, reason=f"no document has its text{more}")
    if not judges.signatures:
        reason = "no document has its text; the sketches of the corpus, which would tell near ones, are not there"
        return Decision(stage="dedup", decision=NOT_KNOWN, reason=reason)
    sketch = Sketch.for_threshold(ingest.least_similarity)
    keys = band_keys(pa.array([text]), sketch).keys.ravel()
    [own] = shingle_sets(pa.array([text]), sketch.words)
    best: tuple[float, DocumentRef] | None = None
    for index, shard in enumerate(corpus.shards):
        if (file := judges.signatures.get(shard.name)) is None:
            continue
        tables = [read_range(corpus.workspace, file, int(key), int(key)) for key in np.unique(keys)]
        rows = np.unique(np.concatenate([table["row"].to_numpy() for table in tables] or [[]])).astype(np.int64)
        rows = rows[:MOST_CANDIDATES]
        if not len(rows):
            continue
        texts = documents_of(corpus.workspace, shard.documents, rows, ["text"])["text"].combine_chunks()
        for row, other in zip(rows.tolist(), shingle_sets(texts, sketch.words), strict=True):
            alike = len(np.intersect1d(own, other)) / max(1, len(np.union1d(own, other)))
            best = max([one for one in (best, (alike, DocumentRef(index, row))) if one], key=lambda pair: pair[0])
    if best is None or best[0] < ingest.least_similarity:
        reason = "no near-duplicate" if best is None else f"the most similar document has {best[0]:.2f} of its shingles"
        return Decision(stage="dedup", decision=KEPT, reason=reason, numbers={"similarity": best and best[0]})
    alike, ref = best
    numbers = {"similarity": alike, "kept_shard": corpus.shards[ref.shard].name, "kept_row": ref.row}
    said = f"near-duplicate ({alike:.2f} of the shingles) of {corpus.name(ref)}"
    if ingest.copies.keep != "earliest" or ingest.copies.prefer:
        return Decision(stage="dedup", decision=KEPT, reason=f"{said}: ingest.copies says which", numbers=numbers)
    return Decision(stage="dedup", decision=DROPPED, reason=f"{said}, which came earlier", numbers=numbers)


def _judged(corpus: Corpus, judges: Judges, models: Models, document: pa.RecordBatch) -> Iterator[Decision]:
    """Yield the scores, the vector and the selection of a document of one row."""
    import torch

    settings = corpus.settings
    loaded = load_models(models.workspace, list(models.scorers))
    needed = sorted(
        {column for scorer in loaded.values() for column in columns_of(scorer)} - set(document.schema.names)
    )
    if needed or len(loaded) < len(models.scorers):
        reason = f"its scores are not computed from the text alone, but from {', '.join(needed) or 'other files'}"
        yield Decision(stage="score", decision=NOT_KNOWN, reason=reason)
        return
    scores = batch_scores(loaded, document, "--text")
    statistics = combine.with_raw(models.statistics.details, set(settings.quality.raw))
    weights = {scorer.name: scorer.weight for scorer in settings.quality.scorers}
    by = settings.quality.by
    quality = combine.combine_scores(
        scores,
        weights,
        statistics["statistics"],
        settings.quality.combine,
        None if by is None else groups_of(document, by),
        statistics.get("by_group"),
    )
    values = {name: float(column[0]) for name, column in scores.items() if column.dtype.kind == "f"}
    yield Decision(stage="score", decision=KEPT, **scored(corpus, values | {"quality": float(quality[0])}))
    pool = encoder_pool(str(models.workspace.local(models.encoder)), models.encoder_fingerprint, settings.embedding)
    with pool.encoder() as encoder:
        encoded = encoder.encode(document["text"].to_pylist())
    if encoded.bad[0]:
        reason = "bad_vector: the encoder gives its text no vector"
        yield Decision(stage="embed", decision=DROPPED, reason=reason)
        return
    vectors: NDArray[Any] = encoded.vectors
    reason = f"a vector of {vectors.shape[1]} dimensions"
    yield Decision(stage="embed", decision=KEPT, reason=reason, numbers={"dimensions": vectors.shape[1]})
    like, ingest = _like(corpus, vectors[0]), settings.ingest
    if ingest.near_dedup == "semantic" and like and like[0][1] >= ingest.least_similarity:
        (ref, cosine) = like[0]
        reason = f"near-duplicate ({cosine:.2f} cosine) of {corpus.name(ref)}"
        yield Decision(stage="dedup", decision=DROPPED, reason=reason, numbers={"similarity": cosine})
        return
    try:
        check_has_rule(settings)
    except SettingsError as error:
        tokens = token_counts(document["token_count"], pc.utf8_length(document["text"]))
        yield _as_newcomer(corpus, like, vectors, quality, tokens) or _by_neighbours(corpus, like, str(error))
        return
    from fineweb_mask.models.selection.corpus.rule import load_rule

    saved = load_rule(_rule(corpus, judges, models), torch.device("cpu"))
    tokens = token_counts(document["token_count"], pc.utf8_length(document["text"]))
    drawn = random_keys(settings.selection.seed, "--text", 1)
    chosen, inclusion = saved.rule.select(Documents(vectors, quality, drawn, tokens), torch.device("cpu"))
    yield _by_rule(corpus, float(inclusion[0]), like, chosen=bool(chosen[0]))


def _like(corpus: Corpus, vector: NDArray[Any]) -> list[tuple[DocumentRef, float]]:
    """Return the documents that were selected from and are most like a text, with their cosines."""
    rows = {}
    for index, shard in enumerate(corpus.shards):
        if shard.masks.path:
            with local_copies():
                block = read_table(corpus.workspace.resolve(shard.masks), columns=["block"])["block"]
            rows[index] = np.flatnonzero(block.is_valid().to_numpy())
    return nearest(corpus, vector, rows, NEAREST)


def _rule(corpus: Corpus, judges: Judges, models: Models) -> Path:
    """Return the file of the rule that selects, or is nearest to the selection; it is kept for the next text."""
    made_of = [models.fingerprint, [shard.masks.fingerprint for shard in corpus.shards]]
    path = corpus.workspace.cache / CACHED / f"rule-{digest(made_of)[:16]}.safetensors"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        export_rule(path, models, corpus.shards, judges.rule)
    return path


def _as_newcomer(
    corpus: Corpus,
    like: Sequence[tuple[DocumentRef, float]],
    vectors: NDArray[Any],
    quality: NDArray[np.float32],
    tokens: NDArray[np.int64],
) -> Decision | None:
    """Return the answer of the selection from the block of the document most like a text, or None if it has none."""
    settings = corpus.settings.selection
    if settings.solver != BY_GAIN or settings.groups is not None or not like:
        return None
    found = competitors(corpus, like[0][0])
    if len(found.refs) > LARGEST_BLOCK:
        return None
    from fineweb_mask.models.ledger.newcomer import newcomer

    parts = list[tuple[NDArray[Any], ...]]()
    for index in found.shards:
        shard, rows = corpus.shards[index], found.refs[found.refs[:, 0] == index, 1]
        with local_copies():
            read = read_columns(corpus.workspace, shard)
            of_shard = np.concatenate([part for _, part in read_vectors(corpus.workspace, shard, rows)])
        parts.append((of_shard, read.quality[rows], read.tokens[rows]))
    own = (vectors, quality, tokens)
    block = [np.concatenate([part[place] for part in (*parts, own)]) for place in range(len(own))]
    by_tokens = block[2] if settings.budget_by == "tokens" else None
    added = newcomer(block[0], block[1], settings, found.selected, found.inclusion, by_tokens)
    if added is None or added.fit < LEAST_FIT:
        return None
    margins = np.array([margin(float(one)) for one in found.inclusion])
    threshold = margin(edge(found.inclusion, found.selected))
    masses = np.append(found.masses, 1 if by_tokens is None else tokens)
    where, above = standing(np.append(margins, added.margin), masses, len(margins)), added.margin - threshold
    said = f"its marginal gain is {abs(above):.2f} deviations {'above' if above >= 0 else 'below'} the threshold"
    numbers = {"marginal_gain_above_threshold": float(f"{above:.4g}"), "selected_from_ratio": round(where.share, 4)}
    return Decision(
        stage="select",
        decision=SELECTED if above >= 0 else NOT_SELECTED,
        reason=f"{said}; from a select_ratio of about {where.share:.2g} on; {_nearest(corpus, like[:1])}",
        numbers={**numbers, "fit": round(added.fit, 4), "nearest": _refs(corpus, like[:1])},
    )


def _by_rule(corpus: Corpus, inclusion: float, like: Sequence[tuple[DocumentRef, float]], *, chosen: bool) -> Decision:
    """Return the answer of a rule, and the budget from which it would be another."""
    above, counted, below = margin(inclusion), 0, 0.0
    for shard in corpus.shards:
        if shard.masks.path:
            with local_copies():
                others = read_table(corpus.workspace.resolve(shard.masks), columns=["inclusion"])[
                    "inclusion"
                ].drop_null()
            counted, below = counted + len(others), below + share_below(others.to_numpy(), inclusion) * len(others)
    ratio = 1 - below / max(1, counted)
    said = f"its marginal gain is {abs(above):.2f} deviations {'above' if above >= 0 else 'below'} the threshold"
    gain = float(f"{above:.4g}")  # never rounded to the threshold itself
    numbers = {"inclusion": inclusion, "marginal_gain_above_threshold": gain, "selected_from_ratio": ratio}
    reason = f"{said}; from a select_ratio of about {ratio:.2g} on; {_nearest(corpus, like[:1])}"
    return Decision(
        stage="select",
        decision=SELECTED if chosen else NOT_SELECTED,
        reason=reason,
        numbers={**numbers, "nearest": _refs(corpus, like[:1])},
    )


def _by_neighbours(corpus: Corpus, like: Sequence[tuple[DocumentRef, float]], why: str) -> Decision:
    """Return what was selected of the documents like a text, where no rule answers for it."""
    selected = sum(one["selected"] for one in _refs(corpus, like))
    reason = f"{selected} of the {len(like)} documents most like it are selected; {_nearest(corpus, like[:1])} ({why})"
    numbers = {"selected_of_nearest": selected, "nearest": _refs(corpus, like)}
    return Decision(stage="select", decision=NOT_KNOWN, reason=reason, numbers=numbers)


def _nearest(corpus: Corpus, like: Sequence[tuple[DocumentRef, float]]) -> str:
    for (ref, cosine), one in zip(like, _refs(corpus, like), strict=True):
        fate = SELECTED if one["selected"] else NOT_SELECTED
        return f"the nearest document, of cosine {cosine:.2f}, is {fate}: {corpus.name(ref)}"
    return "no document was selected from"


def _refs(corpus: Corpus, like: Sequence[tuple[DocumentRef, float]]) -> list[dict[str, Any]]:
    found = []
    for ref, cosine in like:
        shard = corpus.shards[ref.shard]
        [mask] = take(corpus.workspace, shard.masks, ref.row, ["selected"])
        found.append({"shard": shard.name, "row": ref.row, "cosine": round(cosine, 4), "selected": mask["selected"]})
    return found
