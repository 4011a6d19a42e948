"""A small corpus with topics, of which documents are held out; what is made of it for two arms."""

from typing import Any, NamedTuple

import pyarrow as pa
import pytest

from fineweb_mask.models.probe.settings import PRESETS
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.comparison.variants import VariantJob, select_variant
from fineweb_mask.tasks.probe.held_out import HeldOutJob, hold_out
from fineweb_mask.tasks.probe.training import TokenizerJob, TokensJob, TrainJob, make_tokenizer, tokenize, train_model
from fineweb_mask.tasks.selection.blocks import grouped
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.workspace.references import StageFile

TOPICS = ("sea", "kitchen", "space")
DOCUMENTS = 240
TINY = PRESETS["cpu"].model_copy(
    update={"hidden_size": 16, "layers": 1, "heads": 2, "intermediate_size": 16, "context": 16, "vocabulary": 300}
)


class Probed(NamedTuple):
    """Every job of a probe with two arms and two seeds, and its output."""

    built: Any
    theirs: Any  # file of held-out documents
    hold_out: HeldOutJob
    held_out: StageFile
    excluded: dict[str, StageFile]
    tokenizer_job: TokenizerJob
    tokenizer: StageFile
    variants: dict[str, list[VariantJob]]
    tokens: dict[str, StageFile]
    train: dict[str, list[TrainJob]]


@pytest.fixture(scope="session")
def probed(built: Any, pipeline: Any, tmp_path_factory: Any, make_parquet: Any, make_document: Any) -> Probed:
    """Two shards: a page in five has a host of its own, the others share one."""
    folder = tmp_path_factory.mktemp("probed")
    rows = [
        make_document(seed, topic=TOPICS[seed % 3], url=f"https://host{seed % 5 and seed}.org/{seed}")
        for seed in range(DOCUMENTS)
    ]
    for name, part in (("a", rows[:150]), ("b", rows[150:])):
        make_parquet(folder / "source" / f"{name}.parquet", part, (pa.field("topic", pa.string()),))
    theirs = make_parquet(folder / "theirs.parquet", [make_document(1000 + seed) for seed in range(40)])
    source = SourceSettings(path=str(folder / "source"))
    recipe = built.recipe.model_copy(update={"workspace": str(folder / "workspace"), "source": source})
    return run_probe(pipeline(recipe), theirs)


def run_probe(built: Any, theirs: Any) -> Probed:
    """Run every job of the probe by plain calls."""
    root, shards = str(built.workspace.root), built.selection_shards
    holding = HeldOutJob(
        root=root,
        shards=shards,
        files={"theirs": find_files(str(theirs), "path")},
        benchmarks=[],
        by="topic",
        most=30,
        most_per_group=12,
        share=0.2,
        threshold=0.95,
    )
    held_out = hold_out(holding)
    excluded = holding.excluded()
    assert excluded is not None
    documents = [shard.documents for shard in shards]
    making = TokenizerJob(
        root=root,
        documents=documents,
        excluded=list(excluded.values()),
        vocabulary=TINY.vocabulary,
        path=None,
        path_digest=None,
    )
    tokenizer = make_tokenizer(making)
    eligible = [shard.model_copy(update={"duplicates": excluded[shard.name]}) for shard in shards]
    variants: dict[str, list[VariantJob]] = {}
    tokens, trained = {}, {}
    for arm, selector in (("best", "mean_field"), ("random", "random")):
        variants[arm] = [
            VariantJob(
                root=root, shards=group, settings=built.recipe.selection, selector=selector, arm=arm, ranges=None
            )
            for group in grouped(eligible, built.recipe.selection)
        ]
        for job in variants[arm]:
            select_variant(job)
        masks = [file for job in variants[arm] for file in job.shard_files() or []]
        by_name = {file.name: file for file in documents}
        tokens[arm] = tokenize(
            TokensJob(
                root=root,
                arm=arm,
                documents=[by_name[mask.name] for mask in masks],
                masks=masks,
                files=[],
                held_out=held_out,
                tokenizer=tokenizer,
            )
        )
        trained[arm] = [
            TrainJob(
                root=root,
                arm=arm,
                seed=seed,
                preset_name="cpu",
                preset=TINY,
                n_tokens=640,
                tokens=tokens[arm],
                held_out=held_out,
                tokenizer=tokenizer,
            )
            for seed in (0, 1)
        ]
        for job in trained[arm]:
            train_model(job)
    return Probed(built, theirs, holding, held_out, excluded, making, tokenizer, variants, tokens, trained)
