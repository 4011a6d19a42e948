"""Measure a sweep over lamb against separate selections for each value.

    python -m benchmarks.sweep --n 20000 --metrics pairwise disf facility --repeats 3

Every table comes from one run on one machine, so only the ratios in it mean something elsewhere. To measure other
vectors than the synthetic ones: `--vectors file.npz` with `features` (n, d) and `quality` (n,).
"""

import argparse
import statistics
import time

from benchmarks.selection import vectors
from benchmarks.tables import show
from fineweb_mask.models.comparison.sweep import sweep
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.settings.selection import METRICS, SelectionSettings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20_000, help="documents")
    parser.add_argument("--d", type=int, default=768, help="dimensions")
    parser.add_argument("--vectors", help=".npz with features and quality, instead of synthetic ones")
    parser.add_argument("--metrics", nargs="+", default=list(METRICS))
    parser.add_argument("--values", type=int, default=11, help="values of lamb, from 0 to 1")
    parser.add_argument("--repeats", type=int, default=3, help="of which the medians are shown")
    arguments = parser.parse_args()
    features, quality = vectors(arguments)
    lambs = [place / (arguments.values - 1) for place in range(arguments.values)]
    table = []
    for metric in arguments.metrics:
        settings = SelectionSettings(metrics=metric)
        together, alone = [], []
        for _ in range(arguments.repeats):
            started = time.perf_counter()
            swept = sweep(features, quality, settings, lambs)
            together.append(time.perf_counter() - started)
            started = time.perf_counter()
            cold = [select(features, quality, settings.model_copy(update={"lamb": lamb})) for lamb in lambs]
            alone.append(time.perf_counter() - started)
        differences = [one.selection.objective - other.objective for one, other in zip(swept, cold, strict=True)]
        table.append(
            [
                metric,
                f"{statistics.median(together):.1f}",
                f"{statistics.median(alone):.1f}",
                f"{statistics.median(alone) / statistics.median(together):.1f}x",
                f"{min(differences):+.6f}",
                f"{max(differences):+.6f}",
                f"{max(one.selection.gap or 0 for one in swept):.4%}",
                f"{max(one.gap or 0 for one in cold):.4%}",
            ]
        )
        show(
            f"{arguments.values} values of lamb, n = {len(quality):,}, medians of {arguments.repeats}",
            ["metric", "sweep s", "select s", "ratio", "least J diff", "most J diff", "largest gap", "gap alone"],
            table,
        )


if __name__ == "__main__":
    main()
