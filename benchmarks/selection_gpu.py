"""Measure one block of the paper's size on a GPU: 1,000,000 x 768 float16, every metric, both solvers.

python -m benchmarks.selection_gpu --device cuda
python -m benchmarks.selection_gpu --smoke        # the same code on the CPU, small: it must only run
"""

from __future__ import annotations

import argparse
import time

import torch

from benchmarks.selection import measure, percent, prepare, synchronise
from benchmarks.tables import show
from fineweb_mask.models.selection import SelectionSettings
from fineweb_mask.models.settings.selection import METRICS

MAKE_ROWS = 65_536  # vectors made at once, so that float32 noise does not fill the memory


def on_device(n: int, d: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Make clustered unit vectors on the device, (n, d) float16, and quality (n,) float32."""
    generator = torch.Generator(device).manual_seed(0)
    n_clusters = max(8, n // 100)
    centres = torch.randn((n_clusters, d), generator=generator, device=device)
    mean = torch.randn(d, generator=generator, device=device)
    spectrum = (1 + torch.arange(d, device=device) / 20).rsqrt()
    label = torch.randint(n_clusters, (n,), generator=generator, device=device)
    features = torch.empty((n, d), dtype=torch.float16, device=device)
    for start in range(0, n, MAKE_ROWS):
        part = label[start : start + MAKE_ROWS]
        noise = 0.8 * torch.randn((len(part), d), generator=generator, device=device)
        rows = (noise + centres[part] + mean) * spectrum
        features[start : start + MAKE_ROWS] = torch.nn.functional.normalize(rows, dim=1).half()
    score = 0.3 * torch.randn(n_clusters, generator=generator, device=device)[label]
    score += 0.25 * torch.randn(n, generator=generator, device=device)
    return features, torch.sigmoid(2 * score)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--d", type=int, default=768)
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--metrics", nargs="+", choices=METRICS, default=list(METRICS))
    parser.add_argument("--solvers", nargs="+", default=["mean_field", "policy_gradient"])
    parser.add_argument("--smoke", action="store_true", help="n = 600, d = 16, 5 steps, on the CPU")
    arguments = parser.parse_args()
    if arguments.smoke:
        arguments.device, arguments.n, arguments.d, arguments.epochs = "cpu", 600, 16, 5
    on_gpu = arguments.device.startswith("cuda")
    name = torch.cuda.get_device_name(arguments.device) if on_gpu else "CPU"
    features, quality = on_device(arguments.n, arguments.d, arguments.device)
    table = []
    for metric in arguments.metrics:
        settings = SelectionSettings(
            metrics=metric, lamb=0.1, select_ratio=0.1, policy_gradient={"n_epochs": arguments.epochs}
        )
        started = time.perf_counter()
        block = prepare(features, quality, settings, arguments.device)
        synchronise(arguments.device)
        scaling = time.perf_counter() - started
        for solver in arguments.solvers:
            if on_gpu:
                torch.cuda.reset_peak_memory_stats()
            done = measure(block, solver)
            peak = torch.cuda.max_memory_allocated() // 2**20 if on_gpu else done.peak_mib
            table.append(
                [
                    metric,
                    solver,
                    f"{done.seconds:.2f}",
                    f"{scaling:.2f}",
                    f"{done.objective:.5f}",
                    percent(done.gap),
                    f"{peak}",
                ]
            )
    header = ["metric", "solver", "s", "graph and range s", "objective", "gap", "peak MiB"]
    show(f"{arguments.n:,} x {arguments.d} on {name}", header, table)


if __name__ == "__main__":
    main()
