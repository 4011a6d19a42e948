"""Measure one selection over a whole corpus, which is read in parts, against a bound on every selection and one block.

    python -m benchmarks.corpus optimum --n 200000
    python -m benchmarks.corpus growth FOLDER --n 100000 1000000
    python -m benchmarks.corpus real web_mix.parquet --shards-by origin --output OUT
    python -m benchmarks.corpus copies web_mix.parquet --shards-by origin --output OUT

Each shard has a mixture of 60 clusters, and a mean quality, of its own. 100% is the least upper bound on the objective
of any selection, 0% the objective of a random one. `growth` writes the vectors to FOLDER (1.5 GB for a million) and
measures every size in a process of its own. `real` takes one shard for each origin or topic of real documents, and a
sample of half of them; its 100% is one selection from all in memory. Only `copies` charges for near-duplicates, which
a selection from a corpus looks for in cells of so many documents.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.blocks import BLOCKS, prepared, selected, value
from benchmarks.measuring import status_mib
from benchmarks.tables import show
from fineweb_mask.models.selection.block import BlockSolver, Selection, checked_block
from fineweb_mask.models.selection.corpus import near_duplicates
from fineweb_mask.models.selection.corpus.documents import Documents, sampled
from fineweb_mask.models.selection.corpus.sample import CorpusStatistics, SampleProblem
from fineweb_mask.models.selection.corpus.whole import apply, select_corpus
from fineweb_mask.models.selection.inputs import checked_features
from fineweb_mask.models.selection.problem.measures import Measures, coverage
from fineweb_mask.models.selection.selector import select
from fineweb_mask.models.selection.solvers.problem import History
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.models.settings.pipeline import DIRECTIONS
from fineweb_mask.models.settings.selection import NearDuplicateSettings, SelectionSettings
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.blocks import Group, grouped
from fineweb_mask.tasks.selection.inputs.shard_documents import random_keys, read_columns, read_parts
from fineweb_mask.tasks.workspace.workspace import Workspace

CLUSTERS = 60
METRICS = ("pairwise", "disf")
PART = 50_000  # documents that are read at once


def shard_of(number: int, n: int, d: int) -> Documents:
    """Make a shard of n documents."""
    centres = np.random.default_rng(0).standard_normal((CLUSTERS, d), dtype=np.float32)
    random = np.random.default_rng(number + 1)
    cluster = random.choice(CLUSTERS, n, p=random.dirichlet(np.full(CLUSTERS, 0.3)))
    vectors = centres[cluster] + 1.5 * random.standard_normal((n, d), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    liked = 0.5 * np.random.default_rng(0).standard_normal(CLUSTERS)
    quality = random.standard_normal(n) + 0.7 * random.standard_normal() + liked[cluster]
    return Documents(vectors.astype(np.float16), quality.astype(np.float32), random.random(n))


def settings_of(metric: str) -> PipelineSelectionSettings:
    return PipelineSelectionSettings(
        scope="global", metrics=metric, near_duplicates=NearDuplicateSettings(weight=0), select_ratio=0.1
    )


def optimum(arguments: argparse.Namespace) -> None:
    n, d, shards = arguments.n, arguments.d, arguments.shards
    parts = [shard_of(number, n // shards, d) for number in range(shards)]
    everyone = Documents.concatenate(parts)
    rows = checked_features(everyone.vectors, torch.device("cpu"))
    lines = []
    for metric in arguments.metrics:
        settings = settings_of(metric)
        rate = min(1.0, settings.sample_for(n, d) / n) if arguments.rate is None else arguments.rate
        started = time.perf_counter()
        found = select_corpus(lambda: parts, settings, rate=rate, passes=arguments.passes)
        found_seconds = time.perf_counter() - started
        started = time.perf_counter()
        best, solver = solve(everyone, rows, found, settings)
        seconds = time.perf_counter() - started
        objective = solver.scaled(settings.lamb).objective
        blocks = torch.cat([select_block(part, found, settings) for part in parts])
        least = min(found.upper_bound, best.upper_bound or np.inf)

        def share(value: float) -> str:
            return f"{100 * (value - found.random_objective) / (least - found.random_objective):.2f}%"  # noqa: B023

        lines.append(
            [metric, f"{rate * n:,.0f}", share(objective.value_of(blocks)), share(best.objective), f"{seconds:,.0f}"]
            + [share(step.objective) for step in found.steps]
            + [share(found.upper_bound), f"{found_seconds:,.0f}"]
        )
        show(
            f"{n:,} x {d} in {shards} shards that differ",
            ["metric", "sample", "a block for each shard", "one block", "its s"]
            + [f"pass {number + 1}" for number in range(arguments.passes)]
            + ["bound of the passes", "s of all"],
            lines,
        )


def solve(documents: Documents, rows, found, settings: SelectionSettings) -> tuple[Selection, BlockSolver]:  # noqa: ANN001
    """Select from documents in memory, on the scale of the selection from the corpus and in its coordinates."""
    metrics = {name: (metric, 1.0) for name, metric in found.rule.frame.metrics(documents, rows).items()}
    alone = settings.model_copy(update={"metrics": {}})
    solver = BlockSolver(rows, torch.from_numpy(documents.quality), alone, metrics)
    solver.take_ranges(found.ranges)
    history = History()
    scaled, solution = solver.solve(history, settings.lamb)
    return solver.selection(scaled, solution, history, settings.lamb), solver


def select_block(part: Documents, found, settings: SelectionSettings) -> torch.Tensor:  # noqa: ANN001
    selection, _ = solve(part, checked_features(part.vectors, torch.device("cpu")), found, settings)
    mask = torch.zeros(len(part.quality), dtype=torch.bool)
    mask[torch.from_numpy(selection.indices)] = True
    return mask


def growth(arguments: argparse.Namespace) -> None:
    lines = []
    for metric in arguments.metrics:
        before = None
        for n in arguments.n:
            command = [sys.executable, "-m", "benchmarks.corpus", "one", str(arguments.folder), "--metrics", metric]
            command += ["--n", str(n)] + (["--sample", str(arguments.sample)] if arguments.sample else [])
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            times = json.loads(output.splitlines()[-1])
            exponent = "-" if before is None else f"{np.log(times['pass'] / before[1]) / np.log(n / before[0]):.2f}"
            before = (n, times["pass"])
            numbers = [f"{times[name]:,.1f}" for name in ("survey", "learn", "pass", "read", "correct")]
            lines.append([metric, f"{n:,}", f"{times['sample']:,}", *numbers, exponent, f"{times['mib']:,.0f}"])
            show(
                f"Parts of {PART:,} x {arguments.d}, seconds",
                [
                    "metric",
                    "n",
                    "sample",
                    "survey",
                    "learn",
                    "one pass",
                    "its reading",
                    "learn again",
                    "exponent of a pass",
                    "peak MiB",
                ],
                lines,
            )


def one(arguments: argparse.Namespace) -> None:
    """Time one size, and print the times and the largest memory."""
    [metric], [n], device = arguments.metrics, arguments.n, torch.device("cpu")
    settings = settings_of(metric)
    sample = min(arguments.sample or settings.sample_for(n, arguments.d), n)
    for number in range(n // PART):
        path = arguments.folder / f"{number}.npz"
        if not path.exists():
            arguments.folder.mkdir(parents=True, exist_ok=True)
            part = shard_of(number, PART, arguments.d)
            np.savez(path, vectors=part.vectors, quality=part.quality, lots=part.lots)

    times: dict[str, float] = {}

    def parts() -> Iterator[Documents]:
        for number in range(n // PART):
            started = time.perf_counter()
            with np.load(arguments.folder / f"{number}.npz") as arrays:
                part = Documents(arrays["vectors"], arrays["quality"], arrays["lots"])
            times["read"] += time.perf_counter() - started
            yield part

    def timed(name: str, call):  # noqa: ANN001, ANN202
        """Time a call, without what it reads; `read` is left with the time of that."""
        started, times["read"] = time.perf_counter(), 0.0
        result = call()
        times[name] = time.perf_counter() - started - times["read"]
        return result

    surveyed = timed(
        "survey", lambda: [(CorpusStatistics.of(part, device), sampled(part, sample / n)) for part in parts()]
    )
    drawn = Documents.concatenate([chosen for _, chosen in surveyed])
    survey = CorpusStatistics.total([found for found, _ in surveyed])
    del surveyed
    make = partial(SampleProblem, drawn, survey, settings, DIRECTIONS, device)

    def learn():  # noqa: ANN202
        problem = make()
        return problem, problem.learn()

    problem, learned = timed("learn", learn)
    outcome = timed("pass", lambda: apply(parts, learned.rule, learned.margin, problem.budget, device))
    reading = times["read"]
    timed("correct", lambda: problem.corrected(learned, outcome))
    print(json.dumps(times | {"read": reading, "sample": len(drawn.quality), "mib": status_mib("VmHWM")}))


def real(arguments: argparse.Namespace) -> None:
    recipe, shards = prepared(arguments.documents, arguments.shards_by, arguments.output)
    root, ordered = recipe.workspace, sorted(shards, key=lambda shard: shard.name)
    rows, lines = sum(shard.rows for shard in ordered), []
    for metric in arguments.metrics:
        for lamb in (0.8, 0.5):
            settings = PipelineSelectionSettings(
                metrics=metric, lamb=lamb, near_duplicates=NearDuplicateSettings(weight=0), select_ratio=0.1
            )
            groups = [
                Group.read(
                    SelectJob(root=root, shards=[shard], settings=settings.model_copy(update={"block_size": rows}))
                )
                for shard in ordered
            ]
            blocks = [next(group.blocks()) for group in groups]
            parts = [
                Documents(block.vectors, block.quality, random_keys(0, shard.name, shard.rows)[block.rows])
                for block, shard in zip(blocks, ordered, strict=True)
            ]
            everyone = Documents.concatenate(parts)
            solver = checked_block(everyone.vectors, everyone.quality, settings, device="cpu")
            whole = select(everyone.vectors, everyone.quality, settings, ranges=solver.ranges)
            found = select_corpus(lambda: parts, settings, rate=0.5)  # noqa: B023
            masks = {"random": np.random.default_rng(0).permutation(len(everyone.quality)) < solver.budget}
            of_blocks = settings.model_copy(update={"block_size": -(-rows // BLOCKS)})
            jobs = [SelectJob(root=root, shards=group, settings=of_blocks) for group in grouped(shards, of_blocks)]
            chosen = np.split(selected(jobs), np.cumsum([shard.rows for shard in ordered])[:-1])
            masks["blocks"] = np.concatenate([one[block.rows] for one, block in zip(chosen, blocks, strict=True)])
            masks["global"] = np.concatenate(found.masks)
            masks["one block"] = np.isin(np.arange(len(everyone.quality)), whole.indices)
            measures, shard_of_row = (
                Measures(everyone.vectors, everyone.quality),
                np.repeat(np.arange(len(parts)), [len(part.quality) for part in parts]),
            )
            for name, mask in masks.items():
                reached = value(solver, torch.from_numpy(mask), lamb)
                rate = measures.of(mask.nonzero()[0])["near_duplicates"]
                spread = coverage(np.bincount(shard_of_row[mask], minlength=len(parts))).effective
                lines.append(
                    [metric, str(lamb), name, f"{100 * reached / whole.objective:.2f}%", f"{rate:.1%}", f"{spread:.1f}"]
                )
    columns = ["metric", "lamb", "selected by", "objective", "near-duplicates", "effective shards"]
    show(f"{arguments.documents.stem}: {rows:,} documents in {len(shards)} shards", columns, lines)


def copies(arguments: argparse.Namespace) -> None:
    recipe, shards = prepared(arguments.documents, arguments.shards_by, arguments.output)
    workspace, parts, lines = Workspace(recipe.workspace), [], []
    for shard in sorted(shards, key=lambda shard: shard.name):
        found = read_parts(workspace, shard, read_columns(workspace, shard), recipe.selection)
        parts.append(Documents.concatenate([part for _, part in found]))
    everyone = Documents.concatenate(parts)
    measures = Measures(everyone.vectors, everyone.quality)
    for lamb in (0.8, 0.5):
        settings = PipelineSelectionSettings(metrics="pairwise", lamb=lamb, select_ratio=0.1)
        free = settings.model_copy(update={"near_duplicates": NearDuplicateSettings(weight=0)})
        solver = checked_block(everyone.vectors, everyone.quality, settings, device="cpu")
        whole = select(everyone.vectors, everyone.quality, settings)
        chosen = {"one block": whole.indices}
        for name, cell, used in [
            ("rule, nothing charged", 0, free),
            *((f"rule, cells of {size:,}", size, settings) for size in (near_duplicates.CELL_DOCUMENTS, 1000, 250)),
        ]:
            with patch.object(near_duplicates, "CELL_DOCUMENTS", cell):
                found = select_corpus(lambda: parts, used, rate=0.5)
            chosen[name] = np.concatenate(found.masks).nonzero()[0]
        for name, indices in chosen.items():
            reached = value(solver, torch.from_numpy(np.isin(np.arange(len(everyone.quality)), indices)), lamb)
            rate = measures.of(indices)["near_duplicates"]
            lines.append([str(lamb), name, f"{100 * reached / whole.objective:.1f}%", f"{rate:.1%}"])
    title = f"{arguments.documents.stem}: {len(everyone.quality):,} documents in {len(parts)} shards, pairwise"
    show(title, ["lamb", "selected by", "objective", "near-duplicates"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run in (("optimum", optimum), ("growth", growth), ("one", one), ("real", real), ("copies", copies)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--d", type=int, default=768)
        command.add_argument("--metrics", nargs="+", choices=METRICS, default=METRICS)
        if name in ("real", "copies"):
            command.add_argument("documents", type=Path)
            command.add_argument("--shards-by", required=True, metavar="COLUMN")
            command.add_argument("--output", type=Path, required=True)
        elif name == "optimum":
            command.add_argument("--n", type=int, default=200_000)
            command.add_argument("--shards", type=int, default=20)
            command.add_argument("--passes", type=int, default=3)
            command.add_argument("--rate", type=float, help="share in the sample; by default, what the recipe takes")
        else:
            command.add_argument("folder", type=Path)
            command.add_argument("--sample", type=int, help="documents; by default, what the recipe takes")
            command.add_argument("--n", type=int, nargs="+", default=[100_000, 1_000_000])
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
