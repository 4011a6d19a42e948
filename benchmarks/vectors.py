"""Embed and score a Parquet file of real documents once, for `benchmarks.selection --vectors`.

    python -m benchmarks.vectors newsgroups20.parquet newsgroups.npz
    python -m benchmarks.vectors web_mix.parquet newsgroups20.parquet passages.npz --words 150 --most 50000

The vectors (768 values) are of the built-in encoder, fitted on the documents themselves. The quality is the score of a
fastText classifier trained on the labels in data_samples/. Both are deterministic.
"""

import argparse
import random
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from fineweb_mask.models.embedding.load import load_encoder
from fineweb_mask.models.embedding.static_fit import fit_static_encoder
from fineweb_mask.models.quality.fasttext import FastTextScorer, train_fasttext
from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.models.settings.quality import FastTextScorerSettings, LabelSettings
from fineweb_mask.tasks.storage.atomic import atomic_write

LABELS = Path(__file__).resolve().parents[1] / "data_samples" / "labels.parquet"


def main() -> None:
    """Read the texts and write `features`, (n, 768) float32, and `quality`, (n,) float32."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path, nargs="+", help="Parquet files with a text column")
    parser.add_argument("output", type=Path, help=".npz file to write")
    parser.add_argument("--words", type=int, help="cut texts into passages of so many words, in random order")
    parser.add_argument("--most", type=int, help="write no more documents than this, the first ones")
    arguments = parser.parse_args()
    tables = [pq.read_table(source, columns=["text"]) for source in arguments.sources]
    texts = [text for table in tables for text in table["text"].to_pylist() if text]
    if arguments.words:
        texts = passages(texts, arguments.words)
    features, quality, keep = embed_and_score(texts, arguments.output.with_suffix(""))
    features, quality = features[: arguments.most], quality[: arguments.most]
    with atomic_write(arguments.output) as partial, partial.open("wb") as stream:
        np.savez(stream, features=features, quality=quality)
    print(f"{len(features):,} documents, {int((~keep).sum())} left out without a vector: {arguments.output}")


def passages(texts: list[str], words: int) -> list[str]:
    """Cut texts into passages of `words` words, the last of a text of at least 60, without copies, in random order."""
    split = (text.split() for text in texts)
    found = [" ".join(one[start : start + words]) for one in split for start in range(0, len(one) - 60, words)]
    unique = list(dict.fromkeys(found))
    random.Random(0).shuffle(unique)
    return unique


def embed_and_score(texts: list[str], folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the vectors, (m, 768) float32, and quality, (m,) float32, of the texts that have a vector, (n,) bool."""
    encoder = fit_static_encoder(lambda: texts, vocabulary=32_000, dimensions=768)
    (folder / "encoder").mkdir()
    encoder.save(folder / "encoder")
    encoded = load_encoder(str(folder / "encoder"), EmbeddingSettings()).encode(texts)
    labels = pq.read_table(LABELS)
    positive = [score >= 3 for score in labels["score"].to_pylist()]
    model = train_fasttext(labels["text"].to_pylist(), positive, lowercase=False)
    model.save_model(str(folder / "quality.bin"))
    settings = FastTextScorerSettings(labels=LabelSettings(path=str(LABELS)))
    quality = FastTextScorer(settings, str(folder / "quality.bin")).score(texts)
    keep = ~encoded.bad
    return encoded.vectors[keep], quality[keep], keep


if __name__ == "__main__":
    main()
