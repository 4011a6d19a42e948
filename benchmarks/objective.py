"""Study which objective selects well: quality and every measure of diversity, of many mixes of metrics.

    python -m benchmarks.objective prepare --documents FOLDER --vectors OUT
    python -m benchmarks.objective study --vectors OUT --half tuned
    python -m benchmarks.objective study --vectors OUT --half kept --metrics pairwise+facility --lambs 0.7

Three corpora of real documents are embedded by the built-in encoder and scored by the classifier of the sample's
labels. Half of each, by a hash of the text, is kept aside: settings are chosen on one half and shown on the other.
"Share of quality" is 0 for a random subset and 1 for the top quality. A value is as good as random's if it is no worse
than the mean of ten random subsets.
"""

import argparse
import hashlib
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq
import torch

from benchmarks.tables import show
from benchmarks.vectors import embed_and_score
from fineweb_mask.models.analysis.vectors import effective_number, spectrum
from fineweb_mask.models.selection.budget import Budget
from fineweb_mask.models.selection.inputs import checked_features
from fineweb_mask.models.selection.metrics.facility import Facility
from fineweb_mask.models.selection.neighbours import nearest
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import SelectionSettings

CORPORA = {"newsgroups20": "topic", "web_mix": "origin", "fineweb_legal_annotated": None}  # file and column of topics
ELSEWHERE = "fineweb_legal_annotated"  # an origin in web_mix that is a corpus of its own
LEAST_CHARACTERS = 100
RANDOM_SUBSETS = 10
QUALITY_KEPT = 0.85  # of top quality's gain over random
COSINES = (0.95, 0.9, 0.8)


class Corpus(NamedTuple):
    """One half of a corpus."""

    features: np.ndarray  # (n, d) float32
    quality: np.ndarray  # (n,) float32
    tokens: np.ndarray  # (n,) int64
    topics: np.ndarray  # (n,) int64, -1 without topics


def prepare(documents: Path, output: Path) -> None:
    """Embed and score both halves of every corpus."""
    output.mkdir(parents=True, exist_ok=True)
    for name, column in CORPORA.items():
        table = pq.read_table(documents / f"{name}.parquet")
        seen: dict[str, int] = {}
        for row, text in enumerate(table["text"].to_pylist()):
            if text and len(text) >= LEAST_CHARACTERS:
                seen.setdefault(text, row)
        if name == "web_mix":
            origins = table["origin"].to_pylist()
            seen = {text: row for text, row in seen.items() if origins[row] != ELSEWHERE}
        labels = table[column].to_pylist() if column else [None] * table.num_rows
        topics = {label: number for number, label in enumerate(sorted({str(label) for label in labels}))}
        lengths = table["gpt2_tokens"].to_pylist()
        for half, odd in (("tuned", 0), ("kept", 1)):
            texts = [text for text in seen if hashlib.sha256(text.encode()).digest()[0] % 2 == odd]
            rows = [seen[text] for text in texts]
            features, quality, kept = embed_and_score(texts, output / f"{name}-{half}")
            rows = [row for row, keep in zip(rows, kept, strict=True) if keep]
            np.savez(
                output / f"{name}-{half}.npz",
                features=features,
                quality=quality,
                tokens=np.array([lengths[row] for row in rows]),
                topics=np.array([topics[str(labels[row])] if column else -1 for row in rows]),
            )
            print(f"{name} {half}: {len(rows):,} documents", flush=True)


class Judge:
    """Measure selections of one corpus beside its random subsets and its top quality."""

    def __init__(self, corpus: Corpus, budget: int) -> None:
        self.corpus, self.budget = corpus, budget
        self.rows = checked_features(corpus.features, torch.device("cpu"))
        whole = Budget.of(torch.ones(self.rows.n, dtype=torch.int64), self.rows.n)
        self.facility = Facility(self.rows, whole, nearest(self.rows, 1))
        generator = np.random.default_rng(0)
        everyone = len(corpus.quality)
        samples = [self.measures(generator.choice(everyone, budget, replace=False)) for _ in range(RANDOM_SUBSETS)]
        self.random = {key: float(np.mean([sample[key] for sample in samples])) for key in samples[0]}
        self.top = self.measures(np.argsort(-corpus.quality, kind="stable")[:budget])

    def measures(self, indices: np.ndarray) -> dict[str, float]:
        """Measure one selection (K,); larger is better for all but the near-duplicates and the lengths."""
        chosen = torch.as_tensor(np.sort(indices))
        mask = torch.zeros(len(self.corpus.quality), dtype=torch.bool)
        mask[chosen] = True
        x = self.rows.matrix[chosen]
        closest = nearest(Rows(x), 2).similarity[1]
        found = {"quality": float(self.corpus.quality[indices].mean())}
        found |= {f"near {cosine}": float((closest >= cosine).float().mean()) for cosine in COSINES}
        found["facility"] = float(self.facility.value(mask[None])[0])
        found["rank"] = effective_number(spectrum(x.numpy()))
        topics = self.corpus.topics[indices]
        if (topics >= 0).all():
            found["topics"] = effective_number(np.bincount(topics))
        found["median tokens"] = float(np.median(self.corpus.tokens[indices]))
        found["tokens"] = float(self.corpus.tokens[indices].sum())
        return found

    def share_of_quality(self, found: dict[str, float]) -> float:
        """Return how much of top quality's gain over random a selection has."""
        return (found["quality"] - self.random["quality"]) / (self.top["quality"] - self.random["quality"])

    def worse(self, found: dict[str, float]) -> list[str]:
        """Name the measures of diversity that are worse than those of a random subset."""
        low = [key for key in found if key.startswith("near") and found[key] > self.random[key]]
        high = [key for key in ("facility", "rank", "topics") if key in found and found[key] < self.random[key]]
        return low + high


def study(corpora: dict[str, Corpus], mixes: list[str], lambs: list[float], thresholds: list[float | None]) -> None:
    """Print every objective on every corpus."""
    for name, corpus in corpora.items():
        n = len(corpus.quality)
        judge = Judge(corpus, round(0.1 * n))
        table = [_line("random", judge.random, judge, 0.0), _line("top quality", judge.top, judge, 0.0)]
        for mix in mixes:
            for threshold in thresholds:
                for lamb in lambs:
                    settings = SelectionSettings(metrics=_weights(mix), near_duplicates=threshold, lamb=lamb)
                    started = time.perf_counter()
                    found = judge.measures(select(corpus.features, corpus.quality, settings).indices)
                    label = f"{mix}, lamb {lamb:g}" + (f", from {threshold:g} on the best" if threshold else "")
                    table.append(_line(label, found, judge, time.perf_counter() - started))
        show(f"{name}: {n:,} documents, {judge.budget:,} selected", HEADER, table)


HEADER = ["objective", "quality", *(f"near {cosine}" for cosine in COSINES), "facility", "rank", "topics"]
HEADER += ["median", "tokens", "worse than random", "s"]
MIXES = ["pairwise", "facility", "disf", "pairwise+facility", "pairwise+disf"]


def _weights(mix: str) -> dict[str, float]:
    """Read "2*pairwise+disf" as weights of metrics."""
    parts = [part.rpartition("*") for part in mix.split("+")]
    return {name: float(weight or 1) for weight, _, name in parts}


def _line(label: str, found: dict[str, float], judge: Judge, seconds: float) -> list[str]:
    worse = judge.worse(found) if label not in {"random", "top quality"} else []
    share = judge.share_of_quality(found)
    verdict = ", ".join(worse) or ("-" if share >= QUALITY_KEPT else "quality")
    return [
        label,
        f"{share:.3f}",
        *(f"{100 * found[f'near {cosine}']:.1f}%" for cosine in COSINES),
        f"{found['facility']:.4f}",
        f"{found['rank']:.0f}",
        f"{found['topics']:.2f}" if "topics" in found else "",
        f"{found['median tokens']:.0f}",
        f"{found['tokens']:,.0f}",
        verdict,
        f"{seconds:.1f}",
    ]


def main() -> None:
    """Run one part of the study."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["prepare", "study"])
    parser.add_argument("--documents", type=Path, help="prepare: folder of the corpora")
    parser.add_argument("--vectors", type=Path, required=True, help="folder of the vectors")
    parser.add_argument("--half", choices=["tuned", "kept"], default="tuned")
    parser.add_argument("--corpora", nargs="+", choices=CORPORA, default=list(CORPORA))
    parser.add_argument("--metrics", nargs="+", default=MIXES)
    parser.add_argument("--lambs", nargs="+", type=float, default=[0.3, 0.5, 0.7, 0.8])
    parser.add_argument(
        "--thresholds", nargs="+", type=float, default=[0, 0.9, 0.8], help="of near-duplicates; 0: none"
    )
    arguments = parser.parse_args()
    if arguments.part == "prepare":
        prepare(arguments.documents, arguments.vectors)
        return
    corpora = {}
    for name in arguments.corpora:
        with np.load(arguments.vectors / f"{name}-{arguments.half}.npz") as held:
            corpora[name] = Corpus(**{key: held[key] for key in Corpus._fields})
    thresholds = [threshold or None for threshold in arguments.thresholds]
    study(corpora, arguments.metrics, arguments.lambs, thresholds)


if __name__ == "__main__":
    main()
