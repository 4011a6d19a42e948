"""Select by every selector from real corpora under one budget of tokens, and measure what each selection holds.

    python -m benchmarks.selectors REALDATA OUT

Target examples are taken out of the corpus: of newsgroups20 40 posts of each of the four topics `sci.*`, one task each;
of web_mix half of the pages that a language model gave at least 4 of 5 points. "Wanted" is the share of the selected
documents that are of these topics, or have as many points. Quality is the fastText classifier of the sample's labels.
The second score, for the selectors that read several, is the share of distinct words among a text's first 200.
`mean_field` and `greedy` maximise the mix of docs/benchmarks.md, "Which objective?".
"""

import argparse
import json
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from benchmarks.command import COMMAND, ROOT
from benchmarks.tables import show

EXAMPLES = 40  # of each target topic
WORDS = 200
POINTS = 4  # of a wanted page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("realdata", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--corpora", nargs="+", default=["newsgroups20", "web_mix"])
    parser.add_argument("--selectors", default="all")
    arguments = parser.parse_args()
    for name in arguments.corpora:
        folder = arguments.output / name
        folder.mkdir(parents=True, exist_ok=True)
        table = pq.read_table(arguments.realdata / f"{name}.parquet")
        kinds, wanted, is_target = (newsgroups if name == "newsgroups20" else pages)(table)
        write_corpus(folder, table, kinds, is_target)
        measure(name, folder, wanted, arguments.selectors)


def write_corpus(folder: Path, table: pa.Table, kinds: list[str], is_target: np.ndarray) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    variety = [distinct(text) for text in table["text"].to_pylist()]
    both = pa.table({"text": table["text"], "variety": pa.array(variety), "kind": pa.array(kinds)})
    pq.write_table(both.filter(pa.array(~is_target)), folder / "corpus.parquet")
    pq.write_table(both.filter(pa.array(is_target)).select(["text", "kind"]), folder / "targets.parquet")
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe(folder)))


def newsgroups(table: pa.Table) -> tuple[list[str], set[str], np.ndarray]:
    """Return the topic of every post, the wanted topics, and which posts are target examples."""
    topics = np.array(table["topic"].to_pylist())
    wanted = {str(topic) for topic in topics if str(topic).startswith("sci.")}
    is_target = np.zeros(len(topics), dtype=bool)
    for topic in sorted(wanted):
        own = np.flatnonzero(topics == topic)
        is_target[own[:: len(own) // EXAMPLES][:EXAMPLES]] = True
    return topics.tolist(), wanted, is_target


def pages(table: pa.Table) -> tuple[list[str], set[str], np.ndarray]:
    """Return whether every page is wanted, and which are target examples: every second one."""
    points = np.array([-1 if one is None else one for one in table["quality_label"].to_pylist()])
    good = points >= POINTS
    is_target = good & (good.cumsum() % 2 == 0)
    return np.where(good, "good", "other").tolist(), {"good"}, is_target


def distinct(text: str) -> float:
    """Return the share of distinct words among the first 200 of a text; 0 for an empty one."""
    words = text.lower().split()[:WORDS]
    return len(set(words)) / len(words) if words else 0.0


def recipe(folder: Path) -> dict:
    labels = {"path": str(ROOT / "data_samples" / "labels.parquet"), "threshold": 3}
    return {
        "workspace": str(folder / "workspace"),
        "source": {"path": str(folder / "corpus.parquet"), "extra_columns": ["variety", "kind"]},
        "quality": {
            "scorers": [
                {"kind": "fasttext", "labels": labels},
                {"kind": "column", "name": "distinct_words", "column": "variety", "weight": 0.0},
            ]
        },
        "selection": {
            "metrics": {"pairwise": 1, "facility": 1},
            "lamb": 0.8,
            "group_column": "kind",
            "targets": {"path": str(folder / "targets.parquet"), "task_column": "kind"},
        },
    }


def measure(name: str, folder: Path, wanted: set[str], selectors: str) -> None:
    started = time.perf_counter()
    command = [*COMMAND, "compare", str(folder / "recipe.yaml")]
    command += ["--variants", selectors, "--label-column", "kind", "--json"]
    with (folder / "run.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=log, check=True)
    seconds = time.perf_counter() - started
    metrics = json.loads((folder / "workspace" / "compare" / "metrics.json").read_text())
    lines = []
    for selector, one in metrics["selections"].items():
        counts = {topic: found.get(selector, 0) for topic, found in metrics["topics"].items()}
        share = sum(counts[topic] for topic in wanted & counts.keys()) / max(1, sum(counts.values()))
        lines.append(
            [
                selector,
                f"{one['selected']:,}",
                f"{one['tokens']:,}",
                f"{one['mean_quality']:.2f}",
                f"{one['facility']:.3f}",
                f"{one['pairwise']:.4f}",
                f"{one['near_duplicates']:.1%}",
                f"{one['effective_topics']:.1f}",
                f"{share:.1%}",
                "" if one["seconds"] is None else f"{one['seconds']:.1f}",
            ]
        )
    columns = ["selector", "documents", "tokens", "mean quality", "facility", "pairwise", "near-duplicates"]
    title = f"{name}: {metrics['documents']:,} documents, the whole command {seconds:,.0f} s"
    show(title, [*columns, "effective topics", "wanted", "seconds"], lines)


if __name__ == "__main__":
    main()
