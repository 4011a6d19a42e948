"""Measure what the scorer by rules agrees with: scores of FineWeb-Edu's kind, page types, damaged copies, spam.

    python -m benchmarks.rules REALDATA
    python -m benchmarks.rules REALDATA runs

`runs` asks what a whole run gains by it: each corpus is curated with this scorer, without any score, and without one
behind datatrove's filters, a tenth of its documents each. What a selection teaches is that of the report: bits per byte
of held-out documents of the corpus, in percent better than random documents of as many tokens.

REALDATA is a folder with `fineweb_edu_scored_150.parquet` and `web_mix.parquet`. An AUC is the chance that a document
of the first kind scores above one of the second; 0.5 is that of a score that does not see the difference. FineWeb-Edu's
labels are those that a language model gave; the page types are those of a benchmark of web extraction (origin
`wcxb_web_pages`). Damaged copies have their lines or words shuffled, boilerplate around them, or no second half.
The sample's documents are synthetic: `data_samples/truth.parquet` knows which are spam or poorly made.
"""

from __future__ import annotations

import json
import random
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy.stats import rankdata, spearmanr

import fineweb_mask as fm
from benchmarks.tables import show
from fineweb_mask.models.quality.rules import RulesScorer, marks

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE = Path(__file__).resolve().parents[1] / "data_samples"
DAMAGED = 400  # pages
BOILERPLATE = (
    "Home | About us | Products | Contact | Sitemap\n"
    "We use cookies to give you the best experience. By using this site you agree to our use of cookies.\n"
    "Share this: Facebook | Twitter | Pinterest | Email. Subscribe to our newsletter and never miss a post!\n"
    "Copyright. All rights reserved. Terms of use | Privacy policy"
)
SENTENCE = re.compile(r"(?<=[.!?])\s+")


def auc(first: NDArray[Any], second: NDArray[Any]) -> float:
    ranks = rankdata(np.concatenate([first, second]))[: len(first)]
    return float((ranks.sum() - len(first) * (len(first) + 1) / 2) / len(first) / len(second))


def all_marks(texts: pa.Array) -> dict[str, NDArray[Any]]:
    """Return the marks of texts, (n,) by name, and their mean."""
    parts = [marks(texts.slice(start, 500)) for start in range(0, len(texts), 500)]
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return {"score": np.mean([*found.values()], 0), **found}


def damaged(text: str, dice: random.Random) -> dict[str, str]:
    """Return copies of a text that are worse to anyone, by what was done to it."""
    lines = [line for line in text.split("\n") if line.strip()]
    parts = lines if len(lines) > 3 else SENTENCE.split(text.strip())
    words = text.split()
    return {
        "lines shuffled": "\n".join(dice.sample(parts, len(parts))),
        "boilerplate": f"{BOILERPLATE}\n{BOILERPLATE}\n{text}\n{BOILERPLATE}\n{BOILERPLATE}",
        "cut off": text[: len(text) // 2 - 1].rstrip(),
        "words shuffled": " ".join(dice.sample(words, len(words))),
    }


def main(folder: Path) -> None:
    edu = pq.read_table(folder / "fineweb_edu_scored_150.parquet", columns=["text", "edu_score"])
    web = pq.read_table(folder / "web_mix.parquet", columns=["text", "origin", "genre"])
    by_edu, by_web = (all_marks(table["text"].combine_chunks()) for table in (edu, web))
    labels = edu["edu_score"].to_numpy()
    origin, genre = (np.array(web[name].fill_null("").to_pylist()) for name in ("origin", "genre"))
    kinds = {
        "article, other page": (genre == "article", (genre != "article") & (genre != "")),
        "article, listing or shop": (genre == "article", np.isin(genre, ["listing", "collection", "product"])),
        "article, forum": (genre == "article", genre == "forum"),
        "OpenWebText, any web page": (origin == "openwebtext_val_1000", origin == "wcxb_web_pages"),
    }
    table = [
        [
            name,
            f"{spearmanr(by_edu[name], labels)[0]:.2f}",
            f"{auc(by_edu[name][labels >= 4], by_edu[name][labels < 4]):.2f}",
        ]
        + [f"{auc(by_web[name][first], by_web[name][second]):.2f}" for first, second in kinds.values()]
        for name in by_edu
    ]
    show(f"{len(labels)} FineWeb-Edu labels, {len(web):,} pages", ["", "rank corr.", "4 or 5, less", *kinds], table)

    pages, dice = (
        web["text"].take(pa.array(np.flatnonzero(origin == "openwebtext_val_1000")[:DAMAGED])),
        random.Random(0),
    )
    copies = [damaged(page, dice) for page in pages.to_pylist()]
    own, better = RulesScorer().score(pages.combine_chunks()), []
    for kind in copies[0]:
        other = RulesScorer().score([copy[kind] for copy in copies])
        better.append([kind, f"{np.mean((np.sign(own - other) + 1) / 2):.0%}"])
    show(f"{len(pages)} pages preferred to their damaged copies", ["damage", "preferred"], better)

    files = {
        path.stem: pq.read_table(path, columns=["text"])["text"].fill_null("") for path in (SAMPLE / "corpus").glob("*")
    }
    scores = {name: RulesScorer().score(texts.combine_chunks()) for name, texts in files.items()}
    truth = pq.read_table(SAMPLE / "truth.parquet").to_pylist()
    found = np.array([scores[row["shard"]][row["row"]] for row in truth])
    is_spam, grade = (np.array([row[name] for row in truth]) for name in ("is_spam", "grade"))
    language = np.array([row["language"] for row in truth])
    sample = [
        ["not spam, spam", f"{auc(found[~is_spam], found[is_spam]):.2f}"],
        ["well made, poorly made", f"{auc(found[grade == 2], found[grade == 0]):.2f}"],
        ["English, another language", f"{auc(found[language == 'en'], found[language != 'en']):.2f}"],
    ]
    show(f"The {len(truth):,} pages of the sample", ["kinds", "AUC"], sample)

    texts, started = web["text"].combine_chunks(), time.process_time()
    RulesScorer().score(texts)
    seconds = time.process_time() - started
    print(f"\n{len(texts) / seconds:,.0f} documents in a second of one core, {texts.nbytes / seconds / 1e6:.0f} MB")


FILTERS = ("gopher_quality", "gopher_repetition", "c4_quality", "fineweb_quality")
WAYS: dict[str, dict[str, Any]] = {
    "rules": {"quality": {"scorers": [{"kind": "rules"}]}},
    "no score": {"quality": {"scorers": []}},
    "no score, filters": {
        "quality": {"scorers": []},
        "ingest": {"filters": [{"kind": kind} for kind in FILTERS]},
    },
}


def runs(folder: Path) -> None:
    """Curate every corpus in every way, and show what each kept and taught."""
    truth = pq.read_table(SAMPLE / "truth.parquet", columns=["id", "is_spam", "grade"])
    kinds = {
        "web pages": ("web_mix", pq.read_table(folder / "web_mix.parquet", columns=["id", "genre"])),
        "20 Newsgroups": ("newsgroups20", None),
        "the sample": (None, truth),
    }
    lines = []
    for corpus, (file, known) in kinds.items():
        source = SAMPLE / "corpus" if file is None else folder / f"{file}.parquet"
        documents = 6_480 if file is None else pq.ParquetFile(source).metadata.num_rows
        for way, settings in WAYS.items():
            with tempfile.TemporaryDirectory() as workspace:
                recipe = {
                    "workspace": workspace,
                    "source": {"path": str(source)},
                    "selection": {"budget": documents // 10},
                    **settings,
                }
                summary = fm.curate(recipe)
                figures = json.loads((Path(workspace) / "reports" / "metrics.json").read_text())
                kept = pq.read_table(Path(summary.dataset) / "data", columns=["id"])["id"]
            lines.append([corpus, way, f"{len(kept):,}", *taught(figures["teaching"]), *known_of(known, kept)])
            print("  ".join(lines[-1]), flush=True)
    header = ["corpus", "quality", "kept", "taught", "same lengths", "articles; spam", "poorly made"]
    show("A tenth of each corpus, by the default objective", header, lines)


def taught(found: dict[str, Any]) -> list[str]:
    """Return how much better held-out documents are predicted than after random ones, and than after as long ones."""
    if "skipped" in found:
        return ["", ""]
    measured = found["sets"]["pool"]
    base = float(np.mean(measured["losses"]["random"]))
    ways = (measured["against_random"], measured["against_lengths"])
    return [
        f"{-100 * one['selection']['difference'] / base:+.1f} ({one['selection']['verdict']})"
        if "selection" in one
        else "no other"
        for one in ways
    ]


def known_of(known: pa.Table | None, kept: pa.ChunkedArray) -> list[str]:
    """Return the share of articles among pages of a known type, or those of spam and of poorly made pages."""
    if known is None:
        return ["", ""]
    chosen = known.filter(pc.is_in(known["id"], kept.combine_chunks()))
    if "genre" in known.column_names:
        typed = chosen.filter(pc.is_valid(chosen["genre"]))
        return [f"{pc.mean(pc.equal(typed['genre'], 'article')).as_py():.1%}", ""]
    return [
        f"{pc.mean(pc.equal(chosen[name], value)).as_py():.1%}" for name, value in (("is_spam", True), ("grade", 0))
    ]


if __name__ == "__main__":
    runs(Path(sys.argv[1])) if sys.argv[2:] == ["runs"] else main(Path(sys.argv[1]))
