"""A tiny corpus of three shards and the whole pipeline over it, by plain function calls; what its dataset holds."""

import random
import shutil
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from fineweb_mask.models.schemas import FINEWEB
from fineweb_mask.models.settings import (
    EmbeddingSettings,
    IngestSettings,
    MaterializeSettings,
    PipelineSelectionSettings,
    PipelineSettings,
    SourceSettings,
)
from fineweb_mask.models.settings.quality import (
    FastTextScorerSettings,
    LabelSettings,
    QualitySettings,
)
from fineweb_mask.tasks import embed, fit, ingest, materialize, report, score, select
from fineweb_mask.tasks.dedup.duplicates import dedup
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.source.columns import settle
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.witness.job import SELECTION, measure_teaching
from fineweb_mask.tasks.workspace.records.counts import account
from fineweb_mask.tasks.workspace.references import NO_FILE, ShardFiles, StageFile, file_digest
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks import jobs
from tests.tasks.source_files import discover

TOPICS = {
    "sea": "whale coral reef tide harbour sailor current plankton island storm".split(),
    "kitchen": "flour butter oven recipe garlic simmer pepper kettle pastry onion".split(),
    "space": "orbit comet telescope galaxy planet rocket gravity lunar nebula probe".split(),
}
SHARDS = {"a/000": 26, "a/001": 22, "b": 18}
HOSTILE_DUMPS = [
    "../x",
    "a/b",
    "..",
    ".",
    "",
    None,
    "unknown",
    "x" * 300,
    "x" * 300 + "y",
    'it\'s "quoted"',
    "<script>alert(1)</script>",
    "a|b`c`\n| d",
    "nul\x00",
    "$\\frac$ 雪",
    "*",
    "{i}",
    "__HIVE_DEFAULT_PARTITION__",
    "_hidden",
    ".hidden",
    "Case",
    "case",
    "CC-MAIN-2024-10",
    "cc-main-2024-10",
    "CON",
    "con",
    "manifest.json",
    "nul.txt",
    "dot.",
    "space ",
    "\u00e9",
    "e\u0301",
    "dump=1",
]
LANGUAGES = ["de", "fr", None, "unknown"]


def sentence(seed: int, words: int = 14) -> str:
    """Return a text of one topic, the same for the same seed."""
    dice = random.Random(seed)
    topic = TOPICS[sorted(TOPICS)[seed % len(TOPICS)]]
    return f"Page {seed}: " + " ".join(dice.choice(topic) for _ in range(words)) + "."


def document(seed: int, **columns: Any) -> dict[str, Any]:
    """Return a row with FineWeb's columns."""
    row = {
        "text": sentence(seed),
        "id": f"<urn:uuid:{seed}>",
        "dump": f"CC-MAIN-2024-{10 + seed % 2}",
        "url": f"https://example.org/{seed}",
        "date": "2024-01-02T03:04:05Z",
        "file_path": f"s3://commoncrawl/{seed}.warc.gz",
        "language": "en",
        "language_score": 0.9,
        "token_count": 20 + seed % 5,
    }
    return row | columns


def write_rows(path: Path, rows: list[dict[str, Any]], extra: tuple[pa.Field, ...] = ()) -> Path:
    """Write rows as a Parquet file with FineWeb's types."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema([*FINEWEB, *extra])), path)
    return path


class Built:
    """One run over a source: every stage's plain function in order, its jobs and what they returned."""

    def __init__(self, recipe: PipelineSettings) -> None:
        workspace = self.workspace = Workspace(recipe.workspace)
        self.recipe, source, quality, embedding = recipe, recipe.source, recipe.quality, recipe.embedding
        self.shards = settle(discover(source), source)
        documents = self.documents = [
            ingest.ingest(jobs.ingest_job(workspace, shard, source, recipe.ingest)) for shard in self.shards
        ]
        self.dedup_job = jobs.dedup_job(workspace, documents)
        dedup(self.dedup_job)
        self.models = [
            QualityModel(settings=scorer, path=file.path, fingerprint=file.fingerprint)
            for scorer in quality.scorers
            for file in [fit.fit_classifier(jobs.classifier_job(workspace, scorer))]
        ]
        duplicates = self.dedup_job.shard_files() or []
        self.statistics_job = jobs.statistics_job(workspace, documents, self.models, quality, duplicates=duplicates)
        self.statistics = fit.fit_statistics(self.statistics_job)
        self.encoder_job = jobs.encoder_job(workspace, documents, embedding, duplicates)
        self.encoder = fit.fit_encoder(self.encoder_job)
        model = self.embedding_model = ModelFolder(path=self.encoder.path, fingerprint=self.encoder.fingerprint)
        made = self.models, self.statistics, quality
        self.scores = [
            score.score(jobs.score_job(workspace, file, *made, duplicates=repeated))
            for file, repeated in zip(documents, duplicates, strict=True)
        ]
        self.embeddings = [
            embed.embed(jobs.embed_job(workspace, file, model, embedding, repeated))
            for file, repeated in zip(documents, duplicates, strict=True)
        ]
        files = zip(documents, self.scores, self.embeddings, duplicates, strict=True)
        names = ("documents", "scores", "embeddings", "duplicates")
        embedded = [ShardFiles(**dict(zip(names, of_shard, strict=True))) for of_shard in files]
        self.select_jobs = jobs.select_jobs(workspace, embedded, recipe.selection)
        self.groups = [select.select(job) for job in self.select_jobs]
        self.masks = [file for job in self.select_jobs for file in job.shard_files() or []]
        self.counts = account(documents, self.groups)
        self.blocks = [block for group in self.groups for block in group.details["blocks"]]
        selected = [one.model_copy(update={"masks": mask}) for one, mask in zip(embedded, self.masks, strict=True)]
        parts = [one.model_copy(update={"embeddings": NO_FILE, "duplicates": NO_FILE}) for one in selected]
        self.making = jobs.Making(workspace, parts, self.shards, self.counts, self.blocks, recipe)
        self.dataset = self.making.write()
        self.report_job = report.ReportJob(
            root=str(workspace.root),
            dataset=self.dataset,
            shards=selected,
            teaching=measure_teaching(jobs.witness_job(workspace, selected, {SELECTION: self.masks})),
            counts=self.counts,
            blocks=self.blocks,
            settings=recipe.report,
        )

    @cached_property
    def report(self) -> StageFile:
        """The report, made when it is asked for: its plots take as long as all the rest."""
        return report.report(self.report_job)

    @property
    def dataset_job(self) -> materialize.MaterializeJob:
        """The job that puts the dataset in place."""
        return self.making.job

    @property
    def before_report(self) -> list[StageFile]:
        """What every job but the report's returned."""
        one_each = [self.statistics, self.encoder, self.dataset]
        return [*self.documents, *self.scores, *self.embeddings, *self.groups, *one_each]

    @property
    def selection_shards(self) -> list[ShardFiles]:
        """The shards as the selection reads them."""
        return [shard for job in self.select_jobs for shard in job.shards]

    def read(self, file: StageFile, **options: Any) -> pa.Table:
        """Return the content of a stage's file."""
        return pq.read_table(self.workspace.resolve(file), **options)

    def joined(self, *files: StageFile) -> list[dict[str, Any]]:
        """Return the rows that all these files of a shard have; a duplicate has no score and no vector."""
        first, *others = ({row["row"]: row for row in self.read(file).to_pylist()} for file in files)
        rows = [row for row in first if all(row in other for other in others)]
        return [{name: value for file in (first, *others) for name, value in file[row].items()} for row in rows]


def parts(workspace: Workspace) -> list[Path]:
    """Return the Parquet files of a workspace's dataset."""
    return sorted((workspace.dataset / "data").rglob("*.parquet"))


def snapshot(folder: Path) -> dict[str, str]:
    """Return the digests of the files in a folder."""
    return {file.relative_to(folder).as_posix(): file_digest(file) for file in tree_files(folder)}


def selected_rows(built: Built) -> list[dict[str, Any]]:
    """Return what the dataset must hold, put together row by row from the stages' files."""
    rows = []
    for shard, *files in zip(built.shards, built.documents, built.scores, built.masks, strict=True):
        source = {row["id"]: row for row in pq.read_table(shard.url.removeprefix("file://")).to_pylist()}
        for row in built.joined(*files):
            if row["selected"]:
                own = {name: row[name] for name in ("space", "quality", "inclusion", "block")}
                rows.append(source[row["id"]] | own)
    return rows


def materialize_again(built: Built, **changes: Any) -> StageFile:
    """Materialize a workspace with other settings."""
    return built.making.with_settings(**changes).write(force=True)


def read_card(workspace: Workspace) -> tuple[dict[str, Any], str]:
    """Return the header of a dataset's card, and the rest of it."""
    text = (workspace.dataset / "README.md").read_text(encoding="utf-8")
    _, header, body = text.split("---\n", 2)
    return yaml.safe_load(header), body


@pytest.fixture(scope="session")
def make_document() -> Callable[..., dict[str, Any]]:
    """Return the function that makes a row of FineWeb."""
    return document


@pytest.fixture(scope="session")
def make_parquet() -> Callable[..., Path]:
    """Return the function that writes rows of FineWeb."""
    return write_rows


@pytest.fixture(scope="session")
def pipeline() -> Callable[[PipelineSettings], Built]:
    """Return what runs every stage."""
    return Built


@pytest.fixture(scope="session")
def labels(tmp_path_factory: pytest.TempPathFactory) -> LabelSettings:
    """Forty labelled texts: pages on space are good."""
    path = tmp_path_factory.mktemp("labels") / "labels.parquet"
    rows = [{"text": sentence(seed), "score": 5.0 if "galaxy" in sentence(seed, 40) else 1.0} for seed in range(40)]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return LabelSettings(path=str(path))


@pytest.fixture(scope="session")
def scorer(labels: LabelSettings) -> FastTextScorerSettings:
    """A small scorer that trains in milliseconds."""
    return FastTextScorerSettings(name="space", labels=labels)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards; b repeats two texts of a/000, one in capitals, and holds one text twice and one too short."""
    folder = tmp_path_factory.mktemp("corpus")
    seed = 0
    for name, rows in SHARDS.items():
        documents = [document(seed + row) for row in range(rows)]
        seed += rows
        if name == "b":
            documents[3]["text"] = sentence(2)
            documents[5]["text"] = sentence(4).upper()
            documents[7]["text"] = documents[6]["text"]
            documents[8]["text"] = "Too short."
        write_rows(folder / f"{name}.parquet", documents)
    return folder


@pytest.fixture(scope="session")
def recipe(corpus: Path, scorer: FastTextScorerSettings) -> PipelineSettings:
    """The settings of the tiny workspace, whose `workspace` the tests set."""
    return PipelineSettings(
        workspace="unset",
        source=SourceSettings(path=str(corpus)),
        ingest=IngestSettings(min_chars=20),
        quality=QualitySettings(scorers=[scorer]),
        embedding=EmbeddingSettings(static_dimensions=16),
        selection=PipelineSelectionSettings(
            metrics={"facility": 1, "disf": 1}, lamb=0.5, select_ratio=0.25, block_size=50, device="cpu"
        ),
        materialize=MaterializeSettings(license="odc-by"),
    )


@pytest.fixture(scope="session")
def built(recipe: PipelineSettings, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The tiny workspace, built once; only to be read."""
    workspace = tmp_path_factory.mktemp("built") / "workspace"
    return Built(recipe.model_copy(update={"workspace": str(workspace)}))


@pytest.fixture
def copied(built: Built, tmp_path: Path) -> Built:
    """A copy of the tiny workspace in another place, to be changed or damaged."""
    target = tmp_path / "copied"
    shutil.copytree(built.workspace.root, target)
    return Built(built.recipe.model_copy(update={"workspace": str(target)}))


@pytest.fixture(scope="session")
def make_workspace(tmp_path_factory: pytest.TempPathFactory, recipe: PipelineSettings) -> Callable[..., Built]:
    """Return the function that selects all documents of files, given by name as rows and columns of their own."""

    def make(name: str, files: dict[str, tuple[list[dict[str, Any]], list[pa.Field]]]) -> Built:
        folder = tmp_path_factory.mktemp(name)
        for file, (rows, extra) in files.items():
            write_rows(folder / "source" / file, rows, tuple(extra))
        changes = {
            "workspace": str(folder / "workspace"),
            "source": SourceSettings(path=str(folder / "source")),
            "selection": recipe.selection.model_copy(update={"select_ratio": 1.0, "near_duplicates": None}),
        }
        return Built(recipe.model_copy(update=changes))

    return make


@pytest.fixture(scope="session")
def hostile_dumps(make_workspace: Callable[..., Built]) -> Built:
    """A workspace of which everything is selected; its dumps have bad names, its documents languages, and columns."""
    extra = [pa.field("tags", pa.list_(pa.string())), pa.field('say "hi"', pa.int64())]
    rows = [
        document(i, dump=dump, language=LANGUAGES[i // 2 % 4], tags=[str(i)]) | {'say "hi"': i}
        for i, dump in enumerate(HOSTILE_DUMPS)
    ]
    return make_workspace("it's [hostile]", {"a.parquet": (rows[::2], extra), "b.parquet": (rows[1::2], extra)})
