"""Read a sample of a corpus for the witness: the tokens of documents and which selections have them; hold some out.

Which documents are held out is decided by a hash of their text, whatever is selected. A selection may have taken one of
them for the only one of its kind: neither it nor what is too much like it is learned from then, which costs that
selection a little and never helps it.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.analysis.vectors import nearest_cosines, unit_rows
from fineweb_mask.models.dedup.ngrams import MULTIPLIER
from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.witness.effects import HeldOut
from fineweb_mask.models.witness.overlap import sharing_documents
from fineweb_mask.models.witness.tokens import PackedTokens, measured_starts, train_tokenizer
from fineweb_mask.models.witness.witness import HeldOutTexts
from fineweb_mask.tasks.reporting.samples import SAMPLED_SHARDS, DocumentRef, documents_at, evenly_spaced, vectors_at
from fineweb_mask.tasks.selection.inputs.shard_documents import read_columns, read_groups
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.witness.texts import different_texts, host_of
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_HELD_OUT = 500
"""Documents of a held-out set."""
HELD_OUT_SHARE = 0.05  # of the corpus, at most
FEWEST_HELD_OUT = 20
HELD_OUT_TOKENS = 512
"""Of a held-out document that are read, from its start: no long document decides a mean."""
VOCABULARY = 8_192
TOKENIZER_CHARACTERS = 1_000_000
MANY_TOKENS, NO_TOKENS = 10_000, 1_000
"""Of a held-out set: with fewer than the first only large differences are seen, with fewer than the second none."""
SPARE = 1.5  # times the tokens of an arm that are drawn of the smallest selection
POOL = "pool"
"""The held-out set from the corpus."""


class Corpus(NamedTuple):
    """What the witness reads of a workspace."""

    pool: PackedTokens  # n documents that arms are made of
    selections: dict[str, NDArray[np.int64]]  # by name, places in the pool
    quality: NDArray[np.float32]  # (n,)
    places: list[DocumentRef]  # of the n
    groups: NDArray[Any]  # (n,) texts
    held_out: dict[str, HeldOutTexts]
    vocabulary: int
    excluded: int  # documents that are too much like a held-out one
    remarks: list[str]  # sentences on what limits the figures


class _Documents(NamedTuple):
    """The n eligible documents of some shards."""

    shards: NDArray[np.int64]  # (n,)
    rows: NDArray[np.int64]  # (n,)
    ranks: NDArray[np.uint64]  # (n,), by the text
    tokens: NDArray[np.int64]  # (n,), as the documents' own tokenizer counts them
    quality: NDArray[np.float32]  # (n,)
    groups: NDArray[Any]  # (n,) texts, of the column; empty without one
    selected: NDArray[np.bool_]  # (n, selections)

    def take(self, places: NDArray[np.int64]) -> "_Documents":
        """Return some of the documents."""
        return _Documents._make(column[places] for column in self)

    @property
    def places(self) -> list[DocumentRef]:
        """The documents' shards and rows."""
        return list(map(DocumentRef, self.shards.tolist(), self.rows.tolist()))


def read_corpus(
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    selections: Mapping[str, Sequence[StageFile]],
    targets: Mapping[str, Sequence[SourceShard]],
    *,
    threshold: float,
    most_tokens: int,
    select_ratio: float = 1.0,
    by: str | None = None,
) -> Corpus:
    """Read documents of a corpus at random, enough for arms of so many tokens, and hold some of them out.

    Parameters
    ----------
    workspace, shards
        The corpus.
    selections
        By name, the file of masks of every shard.
    targets
        By name, files of documents of the user's, which are held out.
    threshold
        The least cosine of near-duplicates.
    most_tokens
        Of an arm.
    select_ratio
        Share of the tokens that an arm has, where there is no selection yet.
    by
        Column whose values are the documents' groups, which are read with it.

    Raises
    ------
    DataError
        If there is too little to hold out.
    BadShardError
        If a target cannot be read.
    """
    of_targets = {name: _different_texts(name, files) for name, files in targets.items()}
    chosen = evenly_spaced(len(shards), SAMPLED_SHARDS)
    documents = _eligible(workspace, shards, selections, chosen, by)
    order = np.argsort(documents.ranks, kind="stable")
    count = min(MOST_HELD_OUT, int(HELD_OUT_SHARE * len(order)))
    if count < FEWEST_HELD_OUT:
        raise DataError(
            f"only {len(order):,} documents can be selected, of which {HELD_OUT_SHARE:.0%} are held out: at least "
            f"{FEWEST_HELD_OUT} are needed to compare what selections teach; use a larger corpus"
        )
    held_by_arms = (documents.tokens @ documents.selected).tolist()
    smallest = min(held_by_arms, default=select_ratio * int(documents.tokens.sum()))
    share = min(1.0, SPARE * most_tokens / max(smallest, 1))
    held = documents.take(np.sort(order[:count]))
    rest = documents.take(np.sort(order[count : count + round(share * (len(order) - count))]))
    vectors, others = (unit_rows(vectors_at(workspace, shards, one.places)) for one in (rest, held))
    candidates, remarks = len(rest.rows), []
    rest = rest.take(np.flatnonzero(nearest_cosines(vectors, others) < threshold))
    for name, theirs in of_targets.items():
        ranks = _ranks(pa.chunked_array([pa.array(map(content_hash, theirs), pa.binary(16))]))
        if common := int(np.isin(ranks, documents.ranks).sum()):
            remarks.append(_in_the_corpus(name, common, len(theirs)))
        rest = rest.take(np.flatnonzero(~np.isin(rest.ranks, ranks)))
    if not len(rest.rows):
        raise _all_alike()
    texts = [one["text"] for one in documents_at(workspace, shards, rest.places, ["text"])]
    held_pages = documents_at(workspace, shards, held.places, ["text", "url"])
    hosts = [host_of(page["url"]) or f"document {place}" for place, page in enumerate(held_pages)]
    read = int(np.searchsorted(np.cumsum([len(text) for text in texts]), TOKENIZER_CHARACTERS)) + 1
    tokenizer = train_tokenizer(texts[:read], VOCABULARY)
    pool = PackedTokens.of(texts, tokenizer)
    held_out = {POOL: _held_out([page["text"] for page in held_pages], hosts, tokenizer)}
    held_out |= {
        name: _held_out(theirs[:MOST_HELD_OUT], [str(place) for place in range(len(theirs[:MOST_HELD_OUT]))], tokenizer)
        for name, theirs in of_targets.items()
    }
    sharing = np.zeros(len(rest.rows), dtype=bool)
    for name, one in held_out.items():
        sharing |= sharing_documents(pool, one.tokens)
        remarks += _few_tokens(name, one.tokens)
    kept = np.flatnonzero(~sharing)
    if not len(kept):
        raise _all_alike()
    return Corpus(
        pool=pool.take(kept),
        selections={name: np.flatnonzero(rest.selected[kept, place]) for place, name in enumerate(selections)},
        quality=rest.quality[kept],
        places=rest.take(kept).places,
        groups=rest.groups[kept],
        held_out=held_out,
        vocabulary=tokenizer.get_vocab_size(),
        excluded=candidates - len(kept),
        remarks=remarks,
    )


def _eligible(
    workspace: Workspace,
    shards: Sequence[ShardFiles],
    selections: Mapping[str, Sequence[StageFile]],
    chosen: Sequence[int],
    by: str | None,
) -> _Documents:
    found = []
    for index in chosen:
        raise_if_stopped()
        shard = shards[index]
        columns = read_columns(workspace, shard)
        rows = np.flatnonzero(columns.candidate)
        groups = np.full(shard.rows, "") if by is None else read_groups(workspace, shard, by)
        hashes = read_table(workspace.resolve(shard.documents), columns=["content_hash"])["content_hash"]
        masks = [
            read_table(workspace.resolve(files[index]), columns=["selected"])["selected"].to_numpy()[rows]
            for files in selections.values()
        ]
        found.append(
            _Documents(
                shards=np.full(len(rows), index),
                rows=rows,
                ranks=_ranks(hashes)[rows],
                tokens=columns.tokens[rows],
                quality=columns.quality[rows],
                groups=groups[rows],
                selected=np.array(masks, dtype=bool).reshape(len(masks), len(rows)).T,
            )
        )
    return _Documents._make(map(np.concatenate, zip(*found, strict=True)))


def _ranks(hashes: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return a number for each hash of a text, uniform and unlike the hash's own order: (n,)."""
    content = b"".join(chunk.buffers()[1][16 * chunk.offset :][: 16 * len(chunk)] for chunk in hashes.chunks)
    return np.frombuffer(content, dtype="<u8").reshape(-1, 2)[:, 0] * MULTIPLIER


def _held_out(texts: Sequence[str], clusters: Sequence[str], tokenizer: "Tokenizer") -> HeldOutTexts:
    tokens, sizes = measured_starts(texts, tokenizer, HELD_OUT_TOKENS)
    of = np.unique(clusters, return_inverse=True)[1]
    return HeldOutTexts(tokens, HeldOut(sizes, of if of.any() else np.arange(len(of))))  # of one host, pages vary


def _different_texts(name: str, files: Sequence[SourceShard]) -> list[str]:
    found = different_texts(files)
    if len(found) < 2 * FEWEST_HELD_OUT:
        raise DataError(
            f"target {name}: it has {len(found)} different documents with text, at least {2 * FEWEST_HELD_OUT} are "
            "needed; add documents"
        )
    return found


def _in_the_corpus(name: str, common: int, documents: int) -> str:
    most = " Most of this target can be selected as it is: the figures say what else a selection teaches."
    return (
        f"{common:,} of the {documents:,} documents of target {name} are in the corpus word for word. No model of this "
        f"comparison reads them, so that it predicts text that it has not seen.{most if 2 * common > documents else ''}"
    )


def _few_tokens(name: str, held_out: PackedTokens) -> list[str]:
    """Return what a small held-out set means."""
    what = "The corpus" if name == POOL else f"Target {name}"
    tokens, documents = len(held_out.ids), len(held_out.ends)
    if tokens < NO_TOKENS:
        raise DataError(
            f"{what[0].lower()}{what[1:]}: the {documents:,} documents that are held out have {tokens:,} tokens, at "
            f"least {NO_TOKENS:,} are needed to measure anything; add documents, or longer ones"
        )
    if tokens >= MANY_TOKENS:
        return []
    return [
        f"{what} has only {documents:,} documents of {tokens:,} tokens to predict: intervals are wide, and small "
        f"differences cannot be seen. {MANY_TOKENS:,} tokens or more make them narrower."
    ]


def _all_alike() -> DataError:
    return DataError(
        "at least one document must be unlike the held-out ones: all are too much like them, by shared words or by "
        "their vectors; use a larger corpus"
    )
