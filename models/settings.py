"""Every setting of the pipeline, one section per stage; a recipe file is one `PipelineSettings` in YAML.

The models are closed and strict: an unknown key or a wrong type is an error before any work starts.
"""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from models.base import Settings
from models.quality.settings import ColumnScorerSettings, EduScorerSettings, QualitySettings
from models.selection.settings import SelectionSettings
from models.urls import is_url, without_credentials, writable

NUMERIC_COLUMNS = frozenset({"language_score", "token_count", "n_chars"})
"""Columns of every document that hold a number, whatever the source's `extra_columns`."""

STATIC = "static"
"""The `embedding.model` that is built in and fitted on the corpus."""

FLAT = "flat"
"""The `materialize.layout` that puts all files into one folder."""

FROM_QUALITY = "from_quality"
"""The `embedding.model` that takes the vectors from the quality scorer of kind `edu`."""


class SourceSettings(Settings):
    """Where the raw documents are and how their columns are called."""

    path: str = Field(
        min_length=1,
        description="File, folder or glob; a local path or an fsspec URL (s3://, hf://, https://).",
    )
    format: Literal["auto", "parquet", "jsonl"] = Field(
        "auto",
        description="File format; `auto` goes by the file name (.parquet, .jsonl, .jsonl.gz, .jsonl.zst).",
    )
    text_column: str = Field("text", min_length=1, description="Column that holds the document's text.")
    id_column: str = Field(
        "id",
        min_length=1,
        description="Column that holds the document's id; null or missing ids get a stable one.",
    )
    extra_columns: Literal["all"] | list[str] = Field(
        "all",
        description="Columns beyond FineWeb's nine to carry into the dataset: `all`, or a list of names.",
    )
    fingerprint: Literal["mtime", "content"] = Field(
        "mtime",
        description="How a changed file is noticed: size and modification time (or etag), or a hash of its content.",
    )

    @field_validator("path")
    @classmethod
    def _holds_no_credentials(cls, path: str) -> str:
        return without_credentials(path)


class IngestSettings(Settings):
    """Which documents are let in."""

    min_chars: int = Field(100, ge=1, description="Shortest text kept, in characters.")
    languages: list[str] = Field(
        default_factory=list,
        description="Language codes kept; empty keeps every language. A document without a language is kept.",
    )
    min_language_score: float = Field(
        0.0, ge=0.0, le=1.0, description="Lowest language score kept; a document without a score is kept."
    )
    exact_dedup: Literal["corpus", "shard", "off"] = Field(
        "corpus",
        description="Where a document with the same normalised text counts as a duplicate; the first copy stays.",
    )
    on_bad_shard: Literal["quarantine", "fail"] = Field(
        "quarantine", description="An unreadable source file is set aside and reported, or ends the run."
    )

    @field_validator("exact_dedup", mode="before")
    @classmethod
    def _yaml_reads_off_as_false(cls, scope: object) -> object:
        return "off" if scope is False else scope


class EmbeddingSettings(Settings):
    """Which encoder turns a document into a vector."""

    model: str = Field(
        STATIC,
        min_length=1,
        description="`static` (built in, fitted on this corpus), `from_quality` (the encoder of the scorer of kind "
        "edu, in the same forward pass as its score), a sentence-transformers folder, or a hub name.",
    )
    prompt: str | None = Field(
        None,
        description='Text put before every document, such as E5\'s "passage: "; null takes the one that the model '
        "itself has for documents, if any.",
    )
    max_tokens: int | None = Field(
        None, ge=1, description="Tokens read per document, special ones included; null reads what the model allows."
    )
    long_documents: Literal["truncate", "mean_chunks"] = Field(
        "truncate",
        description="Of a document with more tokens, `truncate` embeds the first `max_tokens`; `mean_chunks` embeds "
        "all of it in windows of that length and takes their mean, weighted by their tokens.",
    )
    precision: Literal["float16", "float32", "int8"] = Field(
        "float16", description="Type in which vectors are stored; int8 has one scale per document."
    )
    compute_precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="Type in which a transformer computes; `auto` is bfloat16 on a GPU or CPU that has instructions "
        "for it, else float32.",
    )
    on_bad_vector: Literal["raise", "drop"] = Field(
        "drop", description="A zero or non-finite vector ends the run, or drops its document (counted)."
    )
    batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens per forward pass, padding included; null: 65,536 on a GPU, 2,048 on a CPU. Halved where "
        "the GPU runs out of memory.",
    )
    chunk_documents: int = Field(
        8_192,
        ge=1,
        description="Documents tokenised and sorted by length together; a killed run goes on after the last chunk.",
    )
    device: str = Field("auto", description="`auto` (a GPU where there is one), `cpu`, `cuda` or `cuda:N`.")
    static_vocabulary: int = Field(32_000, ge=300, description="Built-in encoder: tokens in its vocabulary.")
    static_dimensions: int = Field(768, ge=2, description="Built-in encoder: dimensions of its vectors.")
    static_fit_documents: int = Field(20_000, ge=1, description="Built-in encoder: documents it is fitted on.")


class PipelineSelectionSettings(SelectionSettings):
    """How the subset is chosen, and over which blocks of documents."""

    scope: Literal["block"] = Field("block", description="Every block of documents is selected from by itself.")
    block_size: int = Field(
        1_000_000,
        ge=1,
        description="Documents per block, at most: small shards are grouped into a block, large ones split.",
    )
    device: str = Field("auto", description="`auto` (a GPU where there is one), `cpu`, `cuda` or `cuda:N`.")


class MaterializeSettings(Settings):
    """How the product is written."""

    output: str | None = Field(
        None,
        min_length=1,
        description="Folder or URL (s3://) of the dataset; null: `dataset` in the workspace. A folder is "
        "replaced in whole, so it must be new, empty or hold a dataset of this pipeline.",
    )
    title: str = Field("FineWeb-Mask", min_length=1, description="Title of the dataset card.")
    license: str = Field(
        "odc-by", min_length=1, description="Licence identifier for the dataset card; FineWeb's is odc-by."
    )
    source_datasets: list[str] = Field(
        default_factory=list, description="Hub names of the datasets that the source came from, for the card."
    )
    layout: str = Field(
        "dump",
        min_length=1,
        description="One folder for each value of this column (`dump`, `language`, ...), or `flat`: one for all.",
    )
    format: Literal["parquet", "jsonl.zst"] = Field("parquet", description="Format of the dataset's files.")
    file_size: int = Field(512 * 2**20, ge=2**20, description="Target size of a dataset file, in bytes.")
    row_group_size: int = Field(
        20_000,
        ge=1,
        description="Documents in a row group of a Parquet file, at most: one of 256 MiB of text is ended before.",
    )
    shuffle: bool = Field(
        False,
        description="Put the documents of every folder in random order, so that the files can be trained on as they "
        "are; with the layout `flat` that is one order over the whole dataset.",
    )
    seed: int = Field(0, ge=0, description="Seed of that order.")
    memory_limit: str = Field(
        "2GB",
        pattern=r"^\d+(\.\d+)?\s*[KMGT]i?B$",
        description="Memory that DuckDB may use before it spills to disk.",
    )
    threads: int | None = Field(None, ge=1, description="Threads that DuckDB uses; null: one per core.")
    spill: str | None = Field(
        None, min_length=1, description="Folder that DuckDB spills into; null: the workspace's own cache folder."
    )

    @field_validator("output")
    @classmethod
    def _output_can_be_written(cls, output: str | None) -> str | None:
        return None if output is None else writable(without_credentials(output))


class ReportSettings(Settings):
    """What the report looks at."""

    by: list[str] = Field(
        default_factory=list,
        description="Further columns of the source to break the selection down by, such as a page's type.",
    )
    sample: int = Field(
        20_000, ge=2, description="Documents of the source, and as many of the selection, whose vectors are looked at."
    )
    map: Literal["pca", "umap"] = Field(
        "pca",
        description="How vectors are put on a map: `pca`, or `umap` where umap-learn is installed (slower).",
    )


class EngineSettings(Settings):
    """Where tasks run."""

    kind: Literal["local"] = Field("local", description="Threads of this process.")
    workers: int | None = Field(
        None, ge=1, le=64, description="Tasks that run at the same time; null: 2, or one more than there are GPUs."
    )
    score_processes: int | None = Field(
        None, ge=1, description="Processes that score with fastText; null: one per core. 1 scores in the task itself."
    )
    scratch: str | None = Field(
        None,
        min_length=1,
        description="Folder of this machine in which a workspace at a URL is worked on; null: "
        "`fineweb-mask` in the user's cache folder. It holds as much as the workspace.",
    )

    @field_validator("scratch")
    @classmethod
    def _scratch_is_local(cls, scratch: str | None) -> str | None:
        if scratch is not None and is_url(scratch):
            raise ValueError("must be a folder of this machine, not a URL")
        return scratch


class PipelineSettings(Settings):
    """A complete recipe."""

    workspace: str = Field(
        min_length=1,
        description="Folder that holds every stage's files, the dataset and the reports; a local path or a URL that "
        "can be written to (s3://).",
    )
    source: SourceSettings
    ingest: IngestSettings = Field(default_factory=IngestSettings)
    quality: QualitySettings
    embedding: EmbeddingSettings = Field(default_factory=EmbeddingSettings)
    selection: PipelineSelectionSettings = Field(default_factory=PipelineSelectionSettings)
    materialize: MaterializeSettings = Field(default_factory=MaterializeSettings)
    report: ReportSettings = Field(default_factory=ReportSettings)
    engine: EngineSettings = Field(default_factory=EngineSettings)

    @field_validator("workspace")
    @classmethod
    def _workspace_can_be_written(cls, workspace: str) -> str:
        return writable(without_credentials(workspace))

    @model_validator(mode="after")
    def _scores_of_the_source_are_carried_along(self) -> Self:
        carried = self.source.extra_columns
        if carried == "all":
            return self
        for index, scorer in enumerate(self.quality.scorers):
            if isinstance(scorer, ColumnScorerSettings) and scorer.column not in {*NUMERIC_COLUMNS, *carried}:
                raise ValueError(
                    f"quality.scorers.{index}.column: {scorer.column!r} is not read: add it to source.extra_columns"
                )
        return self

    @model_validator(mode="after")
    def _vectors_have_a_source(self) -> Self:
        if self.embedding.model == FROM_QUALITY:
            found = sum(isinstance(scorer, EduScorerSettings) for scorer in self.quality.scorers)
            if found != 1:
                raise ValueError(
                    f"embedding.model: {FROM_QUALITY} takes one scorer of kind edu in quality.scorers, found {found}"
                )
            for key, left in (("prompt", None), ("max_tokens", None), ("long_documents", "truncate")):
                if getattr(self.embedding, key) != left:
                    raise ValueError(
                        f"embedding.{key}: with {FROM_QUALITY} the text is read as the scorer of kind edu reads it: "
                        f"leave it out, and set what that scorer reads in quality.scorers"
                    )
        return self
