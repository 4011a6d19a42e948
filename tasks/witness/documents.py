"""Read a sample of a corpus for the witness: the tokens of documents and which selections have them; hold some out.

Which documents are held out is decided by a hash of their text, whatever is selected. A selection may have taken one of
them for the only one of its kind: neither it nor what is too much like it is learned from then, which costs that
selection a little and never helps it.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.analysis.groups import domains
from fineweb_mask.models.analysis.vectors import nearest_cosines, unit_rows
from fineweb_mask.models.dedup.ngrams import MULTIPLIER
from fineweb_mask.models.documents import content_hash
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.runtime.stopping import raise_if_stopped
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.models.witness.tokens import PackedTokens, sharing_documents, train_tokenizer
from fineweb_mask.models.witness.witness import HeldOut
from fineweb_mask.tasks.reporting.samples import SAMPLED_SHARDS, Places, evenly_spaced, rows_at, vectors_at
from fineweb_mask.tasks.selection.inputs.shard_documents import read_columns, read_groups
from fineweb_mask.tasks.source.discovery import SourceShard, find_files
from fineweb_mask.tasks.source.reader import NoTextColumnError, ShardReader
from fineweb_mask.tasks.storage.parquet import read_table
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_HELD_OUT = 500
"""Documents of a held-out set."""
HELD_OUT_SHARE = 0.05  # of the corpus, at most
FEWEST_HELD_OUT = 20
HELD_OUT_CHARACTERS = 2_000
"""Of a held-out document that are read, from its start: no long document decides a mean."""
VOCABULARY = 8_192
TOKENIZER_CHARACTERS = 1_000_000
SPARE = 1.5  # times the tokens of an arm that are drawn of the smallest selection
POOL = "pool"
"""The held-out set from the corpus."""


class WitnessCorpus(NamedTuple):
    """What the witness reads of a workspace."""

    pool: PackedTokens  # n documents that arms are made of
    selections: dict[str, NDArray[np.int64]]  # by name, places in the pool
    quality: NDArray[np.float32]  # (n,)
    places: Places  # of the n
    groups: NDArray[Any]  # (n,) texts
    held_out: dict[str, HeldOut]
    vocabulary: int
    excluded: int  # documents that are too much like a held-out one


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
) -> WitnessCorpus:
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
    documents = _eligible(workspace, shards, selections, by)
    tokens, order = documents["tokens"].to_numpy(), np.argsort(documents["rank"].to_numpy(), kind="stable")
    count = min(MOST_HELD_OUT, int(HELD_OUT_SHARE * len(order)))
    if count < FEWEST_HELD_OUT:
        raise DataError(
            f"only {len(order):,} documents can be selected, of which {HELD_OUT_SHARE:.0%} are held out: at least "
            f"{FEWEST_HELD_OUT} are needed to compare what selections teach; use a larger corpus"
        )
    held_by_arms = (int(tokens[documents[f"in {name}"].to_numpy()].sum()) for name in selections)
    smallest = min(held_by_arms, default=select_ratio * int(tokens.sum()))
    share = min(1.0, SPARE * most_tokens / max(smallest, 1))
    held = documents.take(np.sort(order[:count]))
    rest = documents.take(np.sort(order[count : count + round(share * (len(order) - count))]))
    vectors, others = (unit_rows(vectors_at(workspace, shards, _places(one))) for one in (rest, held))
    candidates = len(rest)
    theirs = np.concatenate([np.empty(0, np.uint64), *(_ranks_of(texts) for texts in of_targets.values())])
    is_unlike = (nearest_cosines(vectors, others) < threshold) & ~np.isin(rest["rank"].to_numpy(), theirs)
    rest = rest.filter(pa.array(is_unlike))
    texts = rows_at(workspace, shards, _places(rest), "documents", ["text"])["text"].to_pylist()
    read = int(np.searchsorted(np.cumsum([len(text) for text in texts]), TOKENIZER_CHARACTERS)) + 1
    tokenizer = train_tokenizer(texts[:read], VOCABULARY)
    pool = PackedTokens.of(texts, tokenizer)
    pages = rows_at(workspace, shards, _places(held), "documents", ["text", "url"])
    hosts = [host or f"document {place}" for place, host in enumerate(domains(pages["url"]).to_pylist())]
    held_out = {POOL: _held_out(pages["text"].to_pylist(), hosts, tokenizer)}
    for name, of_target in of_targets.items():
        held_out[name] = _held_out(of_target, [str(place) for place in range(len(of_target))], tokenizer)
    sharing = [sharing_documents(pool, one.tokens) for one in held_out.values()]
    kept = np.flatnonzero(~np.any(sharing, axis=0))
    if not len(kept):
        raise DataError(
            "at least one document must be unlike the held-out ones: all are too much like them, by shared words or by "
            "their vectors; use a larger corpus"
        )
    rest = rest.take(kept)
    return WitnessCorpus(
        pool=pool.take(kept),
        selections={name: np.flatnonzero(rest[f"in {name}"]) for name in selections},
        quality=rest["quality"].to_numpy(),
        places=_places(rest),
        groups=rest["group"].to_numpy(),
        held_out=held_out,
        vocabulary=tokenizer.get_vocab_size(),
        excluded=candidates - len(kept),
    )


def _eligible(
    workspace: Workspace, shards: Sequence[ShardFiles], selections: Mapping[str, Sequence[StageFile]], by: str | None
) -> pa.Table:
    """Return the eligible documents of some shards: place, rank by the text, tokens, quality, group, selections."""
    found = []
    for index in evenly_spaced(len(shards), SAMPLED_SHARDS):
        raise_if_stopped()
        shard = shards[index]
        columns = read_columns(workspace, shard)
        hashes = read_table(workspace.resolve(shard.documents), columns=["content_hash"])["content_hash"]
        masks = {
            f"in {name}": read_table(workspace.resolve(files[index]), columns=["selected"])["selected"]
            for name, files in selections.items()
        }
        own = {
            "shard": np.full(shard.rows, index),
            "row": np.arange(shard.rows),
            "rank": _ranks(hashes),
            "tokens": columns.tokens,  # as the documents' own tokenizer counts them
            "quality": columns.quality,
            "group": np.full(shard.rows, "") if by is None else read_groups(workspace, shard, by),
        }
        found.append(pa.table(own | masks).filter(pa.array(columns.candidate)))
    return pa.concat_tables(found)


def _places(documents: pa.Table) -> Places:
    return np.column_stack([documents["shard"], documents["row"]])


def _ranks(hashes: pa.ChunkedArray) -> NDArray[np.uint64]:
    """Return a number for each hash of a text, uniform and unlike the hash's own order: (n,)."""
    content = b"".join(chunk.buffers()[1][16 * chunk.offset :][: 16 * len(chunk)] for chunk in hashes.chunks)
    return np.frombuffer(content, dtype="<u8").reshape(-1, 2)[:, 0] * MULTIPLIER


def _ranks_of(texts: Iterable[str]) -> NDArray[np.uint64]:
    return _ranks(pa.chunked_array([pa.array(map(content_hash, texts), pa.binary(16))]))


def _held_out(texts: Sequence[str], clusters: Sequence[str], tokenizer: "Tokenizer") -> HeldOut:
    read = [text[:HELD_OUT_CHARACTERS] for text in texts]
    of, sizes = np.unique(clusters, return_inverse=True)[1], np.array([len(text.encode()) for text in read])
    tokens = PackedTokens.of(read, tokenizer, end=False)
    return HeldOut(tokens, sizes, of if of.any() else np.arange(len(of)))  # of one host, pages vary


def find_targets(targets: Iterable[str]) -> dict[str, list[SourceShard]]:
    """Return the files of each FILE or NAME=FILE, by the file's name or NAME."""
    named = [one if "=" in one.split("/")[0] else f"{Path(one).name.split('.')[0]}={one}" for one in targets]
    return {name: find_files(path, f"target {name}") for name, _, path in (one.partition("=") for one in named)}


def _different_texts(name: str, files: Iterable[SourceShard]) -> list[str]:
    """Return texts of a target's files, from their column `text`, each once, in an order that depends on them alone."""
    found = set[str]()
    for file in files:
        try:
            reader = ShardReader(file, SourceSettings(path=file.url, extra_columns=[]))
        except NoTextColumnError as error:
            problem = "it has no column 'text': its texts must be in one of that name, rename the column"
            raise NoTextColumnError(f"{file.relative}: {problem}") from error
        for batch, _ in reader.batches():
            found |= {text for text in batch["text"].to_pylist() if text and text.strip()}
    if len(found) < 2 * FEWEST_HELD_OUT:
        raise DataError(
            f"target {name}: it has {len(found)} different documents with text, at least {2 * FEWEST_HELD_OUT} are "
            "needed; add documents"
        )
    return sorted(found, key=content_hash)[:MOST_HELD_OUT]
