"""Measure what selecting block by block loses against one selection from all documents, on shards that differ.

    python -m benchmarks.blocks web_mix.parquet --shards-by origin --output OUT
    python -m benchmarks.blocks newsgroups20.parquet --shards-by topic --output OUT --metrics pairwise

Each origin or topic is one shard, and a block is a sixth of the corpus. 100% is the objective of one selection from all
documents, 0% that of a random one. The objective is that of the whole corpus, also for near-duplicates in two blocks.
Near-duplicates: the share of the selected that have another one from a cosine of 0.95. Effective shards: the
exponential of the entropy of the shards' shares in the selection.
"""

import argparse
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from benchmarks.tables import show
from fineweb_mask.flows.curate import curate
from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.status.inspection import inspect_workspace
from fineweb_mask.models.selection.block import BlockSolver, checked_block
from fineweb_mask.models.selection.graphs.neighbours import nearest
from fineweb_mask.models.selection.problem.measures import coverage, near_duplicate_rate
from fineweb_mask.models.selection.problem.normalisation import weigh
from fineweb_mask.models.selection.problem.objective import Objective
from fineweb_mask.models.selection.rows import Rows
from fineweb_mask.models.settings import PipelineSelectionSettings, PipelineSettings
from fineweb_mask.tasks.select import SelectJob, select
from fineweb_mask.tasks.selection.blocks import Group, grouped
from fineweb_mask.tasks.workspace.references import ShardFiles

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = 6
METRICS = {"pairwise + facility": {"pairwise": 1, "facility": 1}, "pairwise": "pairwise", "disf": "disf"} | {
    "facility": "facility"
}
LAMBS = (0.8, 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("documents", type=Path)
    parser.add_argument("--shards-by", required=True, metavar="COLUMN")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--metrics", nargs="+", choices=METRICS, default=list(METRICS))
    parser.add_argument("--lamb", nargs="+", type=float, default=LAMBS)
    arguments = parser.parse_args()
    recipe, shards = prepared(arguments.documents, arguments.shards_by, arguments.output)
    lines: list[list[str]] = []
    rows = sum(shard.rows for shard in shards)
    title = f"{arguments.documents.stem}: {rows:,} documents in {len(shards)} shards, blocks of {-(-rows // BLOCKS):,}"
    for name in arguments.metrics:
        for lamb in arguments.lamb:
            changes = {"metrics": METRICS[name], "lamb": lamb}
            settings = PipelineSelectionSettings.model_validate(
                recipe.selection.model_dump(exclude_unset=True) | changes
            )
            lines += [[name, str(lamb), *line] for line in compare(recipe.workspace, shards, settings)]
            columns = ["metrics", "lamb", "selected from", "objective", "near-duplicates", "effective shards"]
            show(title, columns, lines)


def prepared(documents: Path, column: str, output: Path) -> tuple[PipelineSettings, list[ShardFiles]]:
    """Write one source file for each value of a column, and run the pipeline up to its embeddings."""
    folder = output / documents.stem
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "source").mkdir(parents=True)
    table = pq.read_table(documents, columns=["text", column])
    for value in sorted(pc.unique(table[column]).to_pylist()):
        part = table.filter(pc.equal(table[column], value)).select(["text"])
        pq.write_table(part, folder / "source" / f"{value.replace('/', '-')}.parquet")
    overrides = [
        f"source.path={folder / 'source'}",
        f"quality.scorers.0.labels.path={ROOT}/data_samples/labels.parquet",
    ]
    overrides += ["selection.solver=random", "source.text_column=text"]
    settings = load_recipe(ROOT / "deployments/recipes/newsgroups.yaml", overrides, str(folder / "workspace"))
    curate(settings)
    plain = load_recipe(ROOT / "deployments/recipes/newsgroups.yaml", overrides[:2], settings.workspace)
    return plain, shard_files(inspect_workspace(settings.workspace))


def compare(workspace: str, shards: list[ShardFiles], settings: PipelineSelectionSettings) -> Iterator[list[str]]:
    """Yield a line for the same share of every block, and for one selection from all documents."""
    ordered = sorted(shards, key=lambda shard: shard.name)
    whole = SelectJob(root=workspace, shards=ordered, settings=settings)
    [block] = Group.read(whole).blocks()
    solver = checked_block(block.vectors, block.quality, settings, device="cpu")
    of_shard = np.repeat(np.arange(len(ordered)), [shard.rows for shard in ordered])[block.rows]
    best = value(solver, torch.from_numpy(selected([whole])[block.rows]), settings.lamb)
    size = -(-sum(shard.rows for shard in shards) // BLOCKS)
    random = solver.scaled(settings.lamb).random_objective(settings.lamb)
    cut = settings.model_copy(update={"block_size": size})
    jobs = [SelectJob(root=workspace, shards=group, settings=cut) for group in grouped(shards, cut)]
    for name, own in {"blocks": jobs, "one block": [whole]}.items():
        yield [name, *measured(solver, selected(own)[block.rows], of_shard, settings.lamb, (random, best))]


def measured(
    solver: BlockSolver, chosen: np.ndarray, of_shard: np.ndarray, lamb: float, ends: tuple[float, float]
) -> list[str]:
    """Measure a mask (n,): its objective between two ends, its near-duplicates, how evenly it covers shards."""
    random, best = ends
    reached = value(solver, torch.from_numpy(chosen), lamb)
    rows = Rows(solver.rows.take(torch.from_numpy(chosen).nonzero()[:, 0]))
    rate = near_duplicate_rate(nearest(rows, 2).similarity[1].cpu().numpy())
    spread = coverage(np.bincount(of_shard[chosen], minlength=int(of_shard.max()) + 1))
    return [
        f"{100 * (reached - random) / (best - random):.2f}%",
        f"{rate:.1%}",
        f"{spread.effective:.1f} ({spread.topics} selected from)",
    ]


def selected(jobs: list[SelectJob]) -> np.ndarray:
    """Run selections, and return which documents they select, in the order of the shards' names: (n,) bool."""
    masks = {}
    for job in jobs:
        select(job)
        masks |= {file.name: job.workspace.resolve(file) for file in job.shard_files() or []}
    return np.concatenate([pq.read_table(masks[name])["selected"].to_numpy() for name in sorted(masks)])


def value(solver: BlockSolver, mask: torch.Tensor, lamb: float) -> float:
    """Return the objective of a mask (n,) of about as many documents as the budget, on the scale of the budget."""
    scaled = weigh(
        Objective(solver.quality, int(mask.sum())),
        solver.metrics,
        solver.ranges,
        lamb=lamb,
        weights=solver.weights,
        near_duplicates=solver.near_duplicates,
    )
    return scaled.objective.value_of(mask)


if __name__ == "__main__":
    main()
