"""Measure the overhead of a run: wall time minus the time in which at least one job was running.

    python -m benchmarks.orchestration deployments/recipes/sample.yaml
    python -m benchmarks.orchestration deployments/recipes/sample.yaml --set source.path=pages/

Every run is a new process, as `fineweb-mask run` is on a machine without a Prefect server; the start of Python and of
Prefect's temporary server counts. Each repeat uses a new workspace: `first` runs everything, `again` finds it cached.
"""

import argparse
import tempfile
from pathlib import Path
from statistics import median

from benchmarks.command import timed_run
from benchmarks.tables import show


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {"first": [], "again": []}
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as workspace:
            options = ["--workspace", workspace, *(f"--set={override}" for override in arguments.overrides)]
            for runs in found.values():
                wall, summary = timed_run(arguments.recipe.absolute(), options)
                runs.append((wall, summary["busy_seconds"]))
    table = []
    for name, runs in found.items():
        walls, busy = [wall for wall, _ in runs], [at_work for _, at_work in runs]
        overhead = median(wall - at_work for wall, at_work in runs)
        share = median((wall - at_work) / wall for wall, at_work in runs)
        table.append([name, f"{median(walls):.1f}", f"{median(busy):.1f}", f"{overhead:.1f}", f"{100 * share:.1f}%"])
    show(f"{arguments.repeats} repeats", ["run", "wall s", "at work s", "orchestration s", "share"], table)


if __name__ == "__main__":
    main()
