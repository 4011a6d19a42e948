"""Measure what selecting block by block loses against one selection from all documents, on shards that differ.

    python -m benchmarks.blocks web_mix.parquet --shards-by origin --output OUT
    python -m benchmarks.blocks newsgroups20.parquet --shards-by topic --output OUT

Each origin or topic is one shard, and a block is a sixth of the corpus. 100% is the objective of one selection from all
documents, 0% that of a random one. The objective is that of the whole corpus, also for near-duplicates in two blocks.
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
from fineweb_mask.flows.curate import run_curate
from fineweb_mask.flows.engine.inspection import inspect_workspace
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.models.selection.ranges import weigh
from fineweb_mask.models.selection.selector import BlockSolver, checked_block
from fineweb_mask.models.settings import PipelineSelectionSettings, PipelineSettings
from fineweb_mask.tasks.select import SelectJob, select
from fineweb_mask.tasks.selection.blocks import Group
from fineweb_mask.tasks.selection.groups import grouped
from fineweb_mask.tasks.workspace.shard_files import ShardFiles

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
    arguments = parser.parse_args()
    recipe, shards = prepared(arguments.documents, arguments.shards_by, arguments.output)
    lines = []
    for name, metrics in METRICS.items():
        for lamb in LAMBS:
            changes = {"metrics": metrics, "lamb": lamb}
            settings = PipelineSelectionSettings.model_validate(
                recipe.selection.model_dump(exclude_unset=True) | changes
            )
            lines.append([name, str(lamb), *compare(recipe.workspace, shards, settings)])
    rows = sum(shard.rows for shard in shards)
    title = f"{arguments.documents.stem}: {rows:,} documents in {len(shards)} shards, blocks of {-(-rows // BLOCKS):,}"
    show(title, ["metrics", "lamb", "blocks by shard", "by_shard", "mixed"], lines)


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
    run_curate(settings)
    return load_recipe(
        ROOT / "deployments/recipes/newsgroups.yaml", overrides[:2], settings.workspace
    ), inspect_workspace(settings.workspace).plan.selectable


def compare(workspace: str, shards: list[ShardFiles], settings: PipelineSelectionSettings) -> Iterator[str]:
    """Yield how many blocks there are by shard, and the share of the optimum that both ways of cutting blocks reach."""
    whole = SelectJob(root=workspace, shards=sorted(shards, key=lambda shard: shard.name), settings=settings)
    [block] = Group.read(whole).blocks()
    solver = checked_block(block.vectors, block.quality, settings, device="cpu")
    best = value(solver, torch.from_numpy(selected([whole])[block.rows]), settings.lamb)
    size = -(-sum(shard.rows for shard in shards) // BLOCKS)
    random = solver.scaled(solver.budget, settings.lamb).random_objective(settings.lamb)
    for blocks in ("by_shard", "mixed"):
        cut = settings.model_copy(update={"blocks": blocks, "block_size": size})
        jobs = [SelectJob(root=workspace, shards=group, settings=cut) for group in grouped(shards, cut)]
        reached = value(solver, torch.from_numpy(selected(jobs)[block.rows]), settings.lamb)
        if blocks == "by_shard":
            yield str(sum(job.slices for job in jobs))
        yield f"{100 * (reached - random) / (best - random):.2f}%"


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
        solver.quality,
        solver.metrics(solver.budget),
        solver.ranges(solver.budget),
        lamb=lamb,
        weights=solver.weights,
        budget=int(mask.sum()),
        near_duplicates=solver.near_duplicates(),
    )
    return scaled.objective.value_of(mask)


if __name__ == "__main__":
    main()
