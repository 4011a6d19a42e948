"""Measure the selection: the closed form against exact greedy and the paper's learner.

Every table comes from one run on one machine, so only the ratios in it mean something elsewhere.

    python -m benchmarks.selection quality --n 10000
    python -m benchmarks.selection speed --n 50000
    python -m benchmarks.selection learner --n 10000
    python -m benchmarks.selection rates --n 1000 --d 64 --epochs 1000 --partial 1.0
    python -m benchmarks.selection growth --sizes 10000 50000 200000
    python -m benchmarks.selection whole --n 50000 --metrics pairwise+facility --lamb 0.8
    python -m benchmarks.selection memory --n 200000 --metrics facility

To measure other vectors than the synthetic ones: `--vectors file.npz` with `features` (n, d) and
`quality` (n,).
"""

from __future__ import annotations

import argparse
import math
import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.synthetic import clustered
from benchmarks.tables import show
from fineweb_mask.models.selection.block import ALIKE, BlockSolver, solver_of
from fineweb_mask.models.selection.measures import relative_gap
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.selection.solvers.policy_gradient import solve_policy_gradient
from fineweb_mask.models.selection.solvers.problem import Problem
from fineweb_mask.models.selection.solvers.prove import prove
from fineweb_mask.models.settings.selection import METRICS, SelectionSettings

if TYPE_CHECKING:
    from fineweb_mask.models.selection.objective import Objective


@dataclass
class Block:
    """A block of documents with its objective, which any solver can solve."""

    solver: BlockSolver
    objective: Objective
    low: float  # J expected of a random selection
    list_seconds: float  # time to build the lists of neighbours


@dataclass
class Measured:
    """The result of one solver."""

    seconds: float
    objective: float
    gap: float | None
    proof_seconds: float
    peak_mib: int
    mask: torch.Tensor


def vectors(arguments: argparse.Namespace, n: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    if arguments.vectors is None:
        return clustered(n or arguments.n, arguments.d)
    with np.load(arguments.vectors) as file:
        return file["features"], file["quality"]


def prepare(features: np.ndarray, quality: np.ndarray, settings: SelectionSettings, device: str) -> Block:
    block = BlockSolver(features, quality, settings, device=device)
    started = time.perf_counter()
    _ = block.lists
    synchronise(device)
    seconds = time.perf_counter() - started
    return Block(block, block.objective, block.random_objective, seconds)


def problem_of(block: Block, settings: SelectionSettings) -> Problem:
    generator = torch.Generator().manual_seed(settings.seed)
    near = None if block.solver.lists is None else block.solver.lists.nearest(ALIKE)
    return Problem(block.solver.rows, block.solver.quality, block.objective, settings, generator, near=near)


def settings_of(arguments: argparse.Namespace, metrics: str, **options: Any) -> SelectionSettings:  # noqa: ANN401
    return SelectionSettings(
        metrics=dict.fromkeys(metrics.split("+"), 1.0),
        near_duplicates=arguments.near_duplicates,
        **options,
    )


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def measure(block: Block, solver: str, *, certify: bool = True) -> Measured:
    settings, objective = block.solver.settings.model_copy(update={"solver": solver}), block.objective
    device = str(block.solver.quality.device)
    started = time.perf_counter()
    mask = solver_of(solver)(problem_of(block, settings)).mask
    synchronise(device)
    seconds = time.perf_counter() - started + block.list_seconds
    reached, gap = objective.value_of(mask), None
    started = time.perf_counter()
    if certify and solver == "mean_field":
        gap = relative_gap(reached, prove(objective, mask, block.low), block.low)
    proof_seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Measured(seconds, reached, gap, proof_seconds, peak, mask)


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.4f}%"


def quality(arguments: argparse.Namespace) -> None:
    features, scores = vectors(arguments)
    for metric in arguments.metrics:
        table, of_greedy = [], []
        for ratio in arguments.ratios:
            for lamb in arguments.lambs:
                settings = settings_of(arguments, metrics=metric, lamb=lamb, select_ratio=ratio)
                block = prepare(features, scores, settings, arguments.device)
                ours, greedy = (measure(block, solver) for solver in ("mean_field", "greedy"))
                low = block.low
                best = max(ours.objective, greedy.objective) - low
                share = (ours.objective - low) / best
                of_greedy.append((ours.objective - low) / (greedy.objective - low))
                table.append(
                    [
                        f"{ratio:g}",
                        f"{lamb:g}",
                        f"{ours.objective:.6f}",
                        f"{greedy.objective:.6f}",
                        percent(share),
                        percent(ours.gap),
                        f"{ours.seconds:.2f}",
                        f"{ours.proof_seconds:.2f}",
                        f"{greedy.seconds:.2f}",
                    ]
                )
        header = ["ratio", "lamb", "mean_field", "greedy", "of the best", "gap", "s", "proof s", "greedy s"]
        show(f"{metric}: objective on the range, n = {len(scores):,}", header, table)
        lowest = min(float(line[4][:-1]) for line in table)
        print(f"lowest share of the best: {lowest:.4f}%; mean of ours/greedy: {np.mean(of_greedy):.5f}")


def speed(arguments: argparse.Namespace) -> None:
    features, scores = vectors(arguments)
    table = []
    for metric in arguments.metrics:
        settings = settings_of(arguments, metrics=metric, lamb=arguments.lamb, select_ratio=0.1)
        block = prepare(features, scores, settings, arguments.device)
        ours = measure(block, "mean_field")
        greedy = measure(block, "greedy")
        table.append(
            [
                metric,
                f"{ours.objective:.6f}",
                f"{greedy.objective:.6f}",
                percent(ours.gap),
                f"{ours.seconds:.2f}",
                f"{ours.proof_seconds:.2f}",
                f"{greedy.seconds:.2f}",
                f"{greedy.seconds / ours.seconds:.1f}x",
                f"{ours.peak_mib}",
                f"{greedy.peak_mib}",
            ]
        )
    header = [
        "metric",
        "mean_field",
        "greedy",
        "gap",
        "s",
        "proof s",
        "greedy s",
        "faster",
        "MiB",
        "greedy MiB",
    ]
    show(f"time at n = {len(scores):,}, ratio 0.1, lamb {arguments.lamb:g}", header, table)


def learner(arguments: argparse.Namespace) -> None:
    features, scores = vectors(arguments)
    table = []
    for metric in arguments.metrics:
        learning = {"n_epochs": arguments.epochs, "partial": arguments.partial}
        settings = settings_of(
            arguments, metrics=metric, lamb=arguments.lamb, select_ratio=0.1, policy_gradient=learning
        )
        block = prepare(features, scores, settings, arguments.device)
        ours = measure(block, "mean_field", certify=False)
        learned = measure(block, "policy_gradient", certify=False)
        share = (learned.objective - block.low) / (ours.objective - block.low)
        table.append(
            [
                metric,
                f"{ours.objective:.5f}",
                f"{ours.seconds:.2f}",
                f"{learned.objective:.5f}",
                percent(share),
                f"{learned.seconds:.1f}",
                f"{learned.seconds / ours.seconds:.0f}x",
            ]
        )
    header = ["metric", "mean_field", "s", "learner", "of ours", "learner s", "faster"]
    show(f"the paper's learner after {arguments.epochs:,} steps, n = {len(scores):,}", header, table)


def rates(arguments: argparse.Namespace) -> None:
    """Measure what the paper's learner reaches at multiples of its two learning rates."""
    features, scores = vectors(arguments)
    table = []
    for metric in arguments.metrics:
        settings = settings_of(arguments, metrics=metric, lamb=arguments.lamb, select_ratio=0.1)
        block = prepare(features, scores, settings, arguments.device)
        ours = measure(block, "mean_field", certify=False).objective
        low = block.low
        shares = []
        for factor in arguments.factors:
            learning = settings.policy_gradient.model_copy(
                update={
                    "n_epochs": arguments.epochs,
                    "partial": arguments.partial,
                    "max_lr": factor * settings.policy_gradient.max_lr,
                    "min_lr": factor * settings.policy_gradient.min_lr,
                }
            )
            problem = problem_of(block, settings.model_copy(update={"policy_gradient": learning}))
            mask = solve_policy_gradient(problem).mask
            shares.append((block.objective.value_of(mask) - low) / (ours - low))
        table.append([metric, *map(percent, shares)])
    title = f"what the learner reaches of mean_field, n = {len(scores):,}, {arguments.epochs:,} steps, rates times"
    show(title, ["metric", *(f"{factor:g}" for factor in arguments.factors)], table)


def growth(arguments: argparse.Namespace) -> None:
    for metric in arguments.metrics:
        seconds, table = [], []
        for n in arguments.sizes:
            settings = settings_of(arguments, metrics=metric, lamb=arguments.lamb, select_ratio=0.1)
            features, scores = clustered(n, arguments.d)
            block = prepare(features, scores, settings, arguments.device)
            ours = measure(block, "mean_field")
            seconds.append(ours.seconds)
            table.append([f"{n:,}", f"{ours.seconds:.2f}", percent(ours.gap), f"{ours.peak_mib}"])
        exponent = np.polyfit(np.log(arguments.sizes), np.log(seconds), 1)[0] if len(seconds) > 1 else math.nan
        show(f"{metric}: time grows as n^{exponent:.2f}", ["n", "s", "gap", "peak MiB"], table)


def whole(arguments: argparse.Namespace) -> None:
    """Time `select` as a recipe calls it: ranges, lists, near-duplicates, solver, proof; float16 features."""
    features, scores = vectors(arguments)
    features = features.astype(np.float16)
    table = []
    for metric in arguments.metrics:
        settings = settings_of(arguments, metrics=metric, lamb=arguments.lamb, select_ratio=0.1)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        started = time.perf_counter()
        selection = select(features, scores, settings, device=arguments.device)
        seconds = time.perf_counter() - started
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        figures = [f"{selection.objective:.6f}", percent(selection.gap), f"{seconds:.1f}", f"{before:,}", f"{peak:,}"]
        table.append([metric, *figures, f"{features.nbytes >> 20:,}"])
    header = ["metrics", "J", "gap", "s", "peak MiB before", "peak MiB", "vectors MiB"]
    show(f"select, n = {len(scores):,}, ratio 0.1, lamb {arguments.lamb:g}", header, table)


def memory(arguments: argparse.Namespace) -> None:
    """Measure one metric alone in this process, with float16 features, so that no other metric raises the peak."""
    features, scores = clustered(arguments.n, arguments.d)
    features = features.astype(np.float16)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    settings = settings_of(arguments, metrics=arguments.metrics[-1], lamb=arguments.lamb, select_ratio=0.1)
    block = prepare(features, scores, settings, arguments.device)
    ours = measure(block, "mean_field")
    dense = 4 * arguments.n**2 / 2**20
    line = [
        arguments.metrics[-1],
        f"{ours.seconds:.1f}",
        f"{block.list_seconds:.1f}",
        percent(ours.gap),
        f"{ours.peak_mib}",
        f"{before}",
        f"{dense:.0f}",
    ]
    header = [
        "metric",
        "s",
        "of it graph s",
        "gap",
        "peak MiB",
        "to make the vectors MiB",
        "dense greedy needs MiB",
    ]
    show(f"memory at n = {arguments.n:,}", header, [line])


TABLES = {
    "quality": quality,
    "speed": speed,
    "learner": learner,
    "rates": rates,
    "growth": growth,
    "whole": whole,
    "memory": memory,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--n", type=int, default=10_000, help="documents")
    parser.add_argument("--d", type=int, default=768, help="dimensions")
    parser.add_argument("--metrics", nargs="+", default=list(METRICS), help="joined by + for a sum")
    parser.add_argument("--lamb", type=float, default=0.1)
    parser.add_argument("--lambs", nargs="+", type=float, default=[0.02, 0.1, 0.3, 0.5, 0.9])
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.05, 0.1, 0.3])
    parser.add_argument(
        "--factors", nargs="+", type=float, default=[0.01, 0.1, 0.3, 1, 3, 10, 100], help="of the rates"
    )
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 50_000, 200_000])
    parser.add_argument("--near-duplicates", type=float, default=0.9, help="cosine from which only the best stays")
    parser.add_argument("--epochs", type=int, default=10_000, help="policy-gradient steps")
    parser.add_argument("--partial", type=float, default=0.05, help="learner: share of the documents in a batch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--vectors", help=".npz file with features and quality, instead of synthetic ones")
    arguments = parser.parse_args()
    TABLES[arguments.table](arguments)


if __name__ == "__main__":
    main()
