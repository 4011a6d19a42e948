"""The built-in encoder on real posts of 20 topics, compared with a transformer trained on a billion pairs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.static_encoder import neighbour_accuracy
from fineweb_mask.models.embedding.static_fit import fit_static_encoder

TRAIN, TEST = 450, 200
CHARACTERS = 600  # that both read: the transformer takes most of the time


def spread(rows: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    return rows[:: len(rows) // n][:n]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.long
@pytest.mark.usefixtures("two_threads")
def test_neighbours_share_the_topic_nearly_as_often_as_those_of_a_transformer(real_data: Path, minilm: Path) -> None:
    rows = pq.read_table(real_data / "newsgroups20.parquet", columns=["text", "topic", "split"]).to_pylist()
    posts = {
        split: [row for row in rows if row["split"] == split and len(row["text"] or "") >= CHARACTERS]
        for split in ("train", "test")
    }
    fitted = [row["text"] for row in rows if row["split"] == "train" and row["text"]]
    encoder = fit_static_encoder(lambda: fitted, vocabulary=32_000, dimensions=768).as_sentence_transformer()
    train, test = spread(posts["train"], TRAIN), spread(posts["test"], TEST)
    texts = [row["text"][:CHARACTERS] for row in [*train, *test]]
    topics = np.array([row["topic"] for row in [*train, *test]])

    def accuracy(vectors: np.ndarray) -> float:
        return neighbour_accuracy(vectors[:TRAIN], topics[:TRAIN], vectors[TRAIN:], topics[TRAIN:])

    ours = accuracy(encoder.encode(texts, show_progress_bar=False))
    theirs = accuracy(SentenceTransformer(str(minilm), device="cpu").encode(texts, show_progress_bar=False))
    noise = accuracy(np.random.default_rng(0).standard_normal((TRAIN + TEST, 768)))
    assert noise < 0.15
    assert theirs > 0.4
    assert ours >= 0.88 * theirs, (ours, theirs)
