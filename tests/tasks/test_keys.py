"""Keys are those of workspaces that were made before: a change here makes every user's files stale."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.models.dedup.minhash import Sketch
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.quality import FastTextScorerSettings
from fineweb_mask.tasks.dataset.partition import PartitionJob
from fineweb_mask.tasks.dedup.buckets import BucketJob
from fineweb_mask.tasks.dedup.sort import CentresJob, SortJob
from fineweb_mask.tasks.embed import EmbedJob
from fineweb_mask.tasks.exclusion import ExclusionJob
from fineweb_mask.tasks.export import ExportJob
from fineweb_mask.tasks.fit.models import FitClassifierJob, FitEncoderJob, FitStatisticsJob, FitTargetsJob
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.ingest import IngestJob
from fineweb_mask.tasks.materialize import MaterializeJob
from fineweb_mask.tasks.report import ReportJob
from fineweb_mask.tasks.score import ScoreJob
from fineweb_mask.tasks.select import SelectJob
from fineweb_mask.tasks.selection.corpus.learning import KeepPolicyJob, LearnJob, SampleJob
from fineweb_mask.tasks.selection.corpus.passes import PenaltiesJob
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.witness.job import WitnessJob
from fineweb_mask.tasks.workspace.records.counts import Counts
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile, digest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = Path(__file__).with_name("keys.json")
TARGETS = "selection.targets={path: examples.parquet}"
SOLVERS = (
    *("top_quality", "random", "quality_sampling", "semdedup", "greedy", "quadmix", "d4", "kmq", "odis"),
    *("ingenious", "quad", "policy_gradient"),
)
VARIATIONS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    **{name: (name, ()) for name in ("sample", "newsgroups", "fineweb", "paper")},
    "raw-web": ("raw-web", ("ingest.filters=[]", "materialize.export=[]")),  # keys with packages and tokenizers in them
    **{solver: ("sample", (f"selection.solver={solver}",)) for solver in SOLVERS},
    **{solver: ("sample", (f"selection.solver={solver}", TARGETS)) for solver in ("dsir", "betr", "rds")},
    "quadmix by group": (
        "sample",
        ("selection.solver=quadmix", "selection.group_column=dump", "selection.quadmix.by_group={a: {omega: 0.2}}"),
    ),
    "global": ("sample", ("selection.scope=global", "selection.metrics={pairwise: 1, disf: 1}")),
    "groups": ("sample", ("selection.groups={column: dump}", "selection.metrics=disf")),
    "semantic": ("sample", ("ingest.near_dedup=semantic", "ingest.near_threshold=0.9")),
    "minhash": ("sample", ("ingest.near_dedup=minhash", "ingest.near_threshold=0.6")),
    "threshold": ("sample", ("ingest.decontaminate_threshold=0.7",)),
    "export": ("sample", ("materialize.export=[{format: parquet, seed: 3}]", "materialize.format=jsonl.zst")),
    "by language": ("sample", ("quality.by=language", "quality.combine=minimum")),
    "scorers": (
        "sample",
        (
            "quality.scorers=[{kind: fasttext, model: a.bin, lowercase: true}, {kind: edu, max_tokens: 99}, "
            "{kind: column, column: token_count, missing: 0}, {kind: sidecar, path: 'a/{shard}.npy', field: 1}, "
            "{kind: classes, name: topic, model: topics}, {kind: perplexity, model: smol, share: 0.2}, {kind: rules}]",
        ),
    ),
    "no quality": ("sample", ("quality.scorers=[]",)),
    "difference": (
        "sample",
        (
            "quality={raw: [difference], scorers: [{kind: column, column: token_count}, "
            "{kind: column, name: difference, column: loss_before, minus: loss_after}]}",
        ),
    ),
    "vectors": (
        "sample",
        ("embedding={model: e5, prompt: 'passage: ', long_documents: mean_chunks, precision: int8}",),
    ),
}


def file(stage: str, name: str = "a", **details: Any) -> StageFile:
    """Return a reference to a file that is not there."""
    return StageFile(
        stage=stage, name=name, path=f"{stage}/{name}", rows=9, bytes=1, fingerprint=f"{stage} {name}", details=details
    )


def tags(settings: PipelineSettings) -> dict[str, str]:
    """Return the tag of a job of each stage whose key has settings in it."""
    root = settings.workspace
    source = SourceShard(name="a", relative="a", url="a", format="parquet", bytes=1, fingerprint="a")
    shard = ShardFiles(**{name: file(name) for name in ("documents", "scores", "embeddings", "duplicates", "masks")})
    selection, quality = settings.selection, settings.quality
    common: dict[str, Any] = {"root": root, "settings": selection}
    models = [QualityModel(settings=one, path=one.name, fingerprint=one.name) for one in quality.scorers]
    counts = Counts(**(dict.fromkeys(Counts.model_fields, 0) | {"dropped": {}}))
    sketch = Sketch.for_threshold(settings.ingest.near_threshold or 0.7)
    jobs: list[Any] = [
        IngestJob(root=root, shard=source, source=settings.source, settings=settings.ingest),
        SortJob(root=root, by="signatures", file=shard.documents, sketch=sketch),
        ExclusionJob(root=root, of="known", files=[source]),
        ExclusionJob(root=root, of="benchmarks", files=[source]),
        IngestJob(
            root=root,
            shard=source.model_copy(update={"name": "decontaminated"}),
            source=settings.source,
            settings=settings.ingest,
            benchmarks=file("exclusion"),
        ),
        CentresJob(root=root, embeddings=[shard.embeddings], model="e"),
        BucketJob(
            root=root,
            comparison="similar",
            sorted_rows=[shard.embeddings],
            bucket=0,
            buckets=1,
            memory_limit="1GB",
            threshold=settings.ingest.near_threshold or 0.95,
        ),
        *(
            FitClassifierJob(root=root, documents=[], scorer=scorer, labels=scorer.labels, labels_digest="l")
            for scorer in quality.scorers
            if isinstance(scorer, FastTextScorerSettings) and scorer.labels is not None
        ),
        FitStatisticsJob(root=root, documents=[shard.documents], models=models, settings=quality),
        ScoreJob(root=root, documents=shard.documents, models=models, statistics=file("statistics"), settings=quality),
        FitEncoderJob(root=root, documents=[shard.documents], settings=settings.embedding),
        EmbedJob(
            root=root,
            documents=shard.documents,
            model=ModelFolder(path="e", fingerprint="e"),
            settings=settings.embedding,
        ),
        SelectJob(shards=[shard], **common),
        SampleJob(shard=shard, rate=0.5, **common),
        LearnJob(number=1, samples=[file("sample")], **common),
        PenaltiesJob(cell=1, passes=[file("measure")], policy=file("rule"), part="next", **common),
        KeepPolicyJob(models=["m"], **common),
        PartitionJob(
            root=root,
            settings=settings.materialize,
            version="v",
            number=0,
            partitions=1,
            shards=[shard],
            sources=[source],
            columns="",
            corpus=digest([["a", "a"]]),
        ),
        MaterializeJob(root=root, inputs="i", version="v", counts=counts, blocks=[], recipe=settings, shards=[shard]),
        WitnessJob(selections={"selection": [shard.masks]}, threshold=0.9, root=root, shards=[shard]),
        ReportJob(
            root=root,
            dataset=file("dataset"),
            shards=[shard],
            teaching=file("witness"),
            counts=counts,
            blocks=[],
            stages=[],
            settings=settings.report,
        ),
    ]
    if selection.targets is not None:
        targets: dict[str, Any] = {"files": [source], "settings": selection.targets, "embedding": settings.embedding}
        jobs.append(FitTargetsJob(root=root, documents=[], encoder="e", encoder_fingerprint="e", **targets))
    exports = settings.materialize.export
    jobs += [ExportJob(root=root, dataset="dataset a", place="x", settings=one) for one in exports]
    return {f"{job.key.stage} {job.name}": job.key.tag for job in jobs}


@pytest.mark.parametrize("variation", VARIATIONS)
def test_keys_are_those_of_earlier_workspaces(variation):
    recipe, overrides = VARIATIONS[variation]
    settings = load_recipe(ROOT / "deployments" / "recipes" / f"{recipe}.yaml", overrides, workspace="workspace")
    golden = json.loads(GOLDEN.read_text())
    assert {name: tag for name, tag in tags(settings).items() if golden["all"].get(name) != tag} == golden[variation]
