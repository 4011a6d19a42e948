"""Compare facility location with apricot-select and submodlib-py: time, objective, memory.

    python -m benchmarks.facility_peers --n 3000 --peer-python path/to/python

The peers run in the named interpreter, so that they can be installed in a separate environment.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.selection import measure, percent, prepare, vectors
from benchmarks.tables import show
from fineweb_mask.models.settings.selection import SelectionSettings

PEERS = {
    "apricot-select": """
import sys, time, numpy
features, budget = numpy.load(sys.argv[1]), int(sys.argv[2])
from apricot import FacilityLocationSelection
start = time.perf_counter()
similarity = numpy.clip(features @ features.T, 0, None).astype(numpy.float64)
chosen = FacilityLocationSelection(budget, metric="precomputed", optimizer="lazy").fit(similarity).ranking
""",
    "submodlib-py": """
import sys, time, numpy
features, budget = numpy.load(sys.argv[1]), int(sys.argv[2])
from submodlib import FacilityLocationFunction
start = time.perf_counter()
similarity = numpy.clip(features @ features.T, 0, None)
function = FacilityLocationFunction(n=len(features), mode="dense", sijs=similarity, separate_rep=False)
chosen = [i for i, _ in function.maximize(budget=budget, optimizer="LazyGreedy", show_progress=False)]
""",
}
REPORT = """
import json, resource
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
print(json.dumps({"seconds": seconds, "chosen": [int(i) for i in chosen], "peak": peak}))
"""


def peers(arguments: argparse.Namespace) -> None:
    """Compare facility location alone (lamb = 0), which the peers maximise."""
    features, scores = vectors(arguments)
    settings = SelectionSettings(metrics="facility", lamb=0.0, select_ratio=0.1, near_duplicates=None)
    block = prepare(features, scores, settings, arguments.device)
    objective = block.problem.objective
    table = []
    for solver in ("mean_field", "greedy"):
        ours = measure(block, solver)
        name = f"fineweb-mask {solver}"
        table.append([name, f"{ours.seconds:.2f}", f"{ours.objective:.5f}", percent(ours.gap), f"{ours.peak_mib}"])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        np.save(path, features)
        for name, code in PEERS.items():
            command = [arguments.peer_python, "-c", code + REPORT, str(path), str(objective.budget)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = done.stderr.strip().splitlines()[-1] if done.stderr else "no output"
                missing = "ModuleNotFoundError" in reason
                table.append([name, "not installed" if missing else reason[:60], "-", "-", "-"])
                continue
            answer = json.loads(done.stdout.strip().splitlines()[-1])
            mask = torch.zeros(objective.budget.n, dtype=torch.bool)
            mask[answer["chosen"]] = True
            value = objective.value_of(mask.to(arguments.device))
            table.append([name, f"{answer['seconds']:.2f}", f"{value:.5f}", "-", f"{answer['peak']}"])
    header = ["facility location", "s", "objective on the range", "gap", "peak MiB"]
    show(f"peers at n = {len(scores):,}, ratio 0.1, lamb 0", header, table)


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=3_000, help="documents")
    parser.add_argument("--d", type=int, default=768, help="dimensions")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--vectors", help=".npz file with features and quality, instead of synthetic ones")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has the peers")
    peers(parser.parse_args())


if __name__ == "__main__":
    main()
