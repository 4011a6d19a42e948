"""Define the settings of the sections `source` and `ingest`."""

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from fineweb_mask.models.settings.base import Settings, constants
from fineweb_mask.models.urls import reject_credentials

NUMERIC_COLUMNS = frozenset({"language_score", "token_count", "n_chars"})
"""Numeric columns that every document has, independent of `source.extra_columns`."""

LABEL_COLUMNS = NUMERIC_COLUMNS | {"id", "dump", "url", "date", "file_path", "language"}
"""Columns that every document has and that may name its group: all but the text and its hash."""


class SourceSettings(Settings):
    """Where the raw documents are, and the names of their columns."""

    path: str = Field(
        min_length=1, description="File, folder or glob; a local path or a URL (s3://, gs://, az://, hf://, https://)."
    )
    format: Literal["auto", "parquet", "jsonl", "warc"] = Field(
        "auto",
        description="File format; `auto` takes it from the file name (.parquet; .jsonl, .jsonl.gz, .jsonl.zst; .warc, "
        ".warc.gz, .wet.gz). `warc` is a crawl, of whose pages the main text is extracted.",
    )
    text_column: str = Field("text", min_length=1, description="Column with the document's text.")
    id_column: str = Field(
        "id",
        min_length=1,
        description="Column with the document's id; a missing or null id is replaced by a stable one.",
    )
    extra_columns: Literal["all"] | list[str] = Field(
        "all", description="Columns other than FineWeb's nine to keep in the dataset: `all`, or a list of names."
    )
    max_document_bytes: int = Field(
        32 * 2**20,
        ge=2**10,
        le=2**30,
        description="Largest document, in bytes of its line of JSON, or of all text columns of its row in Parquet; a "
        "larger one is dropped as `too_large`.",
    )
    fingerprint: Literal["mtime", "content"] = Field(
        "mtime",
        description="How to detect a changed file: `mtime` compares size and modification time (or etag), `content` a "
        "hash of the content.",
    )

    @field_validator("path")
    @classmethod
    def _holds_no_credentials(cls, path: str) -> str:
        return reject_credentials(path)


class MinHashSettings(Settings):
    """How near-duplicates are found by their words; the defaults are FineWeb's."""

    CONSTANTS = constants(seed=1)

    words: int = Field(5, ge=1, le=64, description="Words of a shingle: texts are compared by the sets of these.")
    bands: int = Field(14, ge=1, le=256, description="Bands of a signature: two texts that share one are a pair.")
    rows: int = Field(
        8,
        ge=1,
        le=64,
        description="Hashes in a band. Of a similarity of (1/bands)^(1/rows), about 64% of the pairs are found.",
    )


class SemanticSettings(Settings):
    """How near-duplicates are found by their vectors."""

    CONSTANTS = constants(seed=0)

    threshold: float = Field(
        0.95, gt=0, le=1, description="Cosine from which a document is a near-duplicate of an earlier one."
    )
    cells: int = Field(
        1_000,
        ge=1,
        le=2**20,
        description="Clusters of k-means, in each of which documents are compared; fewer where the sample of the "
        "corpus has less than 200 documents for each. Near-duplicates in different clusters are not found.",
    )


FilterKind = Literal[
    "gopher_quality",
    "gopher_repetition",
    "c4_quality",
    "c4_paragraphs",
    "fineweb_quality",
    "url",
    "regex",
    "language",
    "pii",
    "symbol_lines",
]
CHANGING: frozenset[FilterKind] = frozenset({"c4_quality", "pii", "symbol_lines"})
"""Filters that change texts, and do not only drop some."""


class FilterSettings(Settings):
    """One of datatrove's filters."""

    kind: FilterKind = Field(description="The filter: its rules are those of datatrove's class of this name.")
    options: dict[str, bool | int | float | str | list[str] | None] = Field(
        default_factory=dict,
        description="What differs from the class's own defaults, by the names of its arguments; `language` also takes "
        "`model`, the file of a fastText model of languages.",
    )

    @model_validator(mode="after")
    def _pattern_compiles(self) -> Self:
        pattern = self.options.get("regex_exp")
        if self.kind == "regex" and isinstance(pattern, str):
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"options.regex_exp must be a regular expression: {error}") from error
        return self


class IngestSettings(Settings):
    """Which documents of the source are kept."""

    min_chars: int = Field(100, ge=1, description="Minimum length of a text, in characters.")
    languages: list[str] = Field(
        default_factory=list,
        description="Languages to keep (codes); empty keeps all. A document without a language is kept.",
    )
    min_language_score: float = Field(
        0.0, ge=0.0, le=1.0, description="Minimum language score; a document without a score is kept."
    )
    filters: list[FilterSettings] = Field(
        default_factory=list,
        description="Filters of datatrove that a document passes, in this order, before duplicates are looked for; "
        "`c4_quality`, `pii` and `symbol_lines` also change its text.",
    )
    exact_dedup: Literal["corpus", "shard", "off"] = Field(
        "corpus",
        description="Where to drop documents with equal normalised text: in the whole `corpus`, within each `shard`, "
        "or nowhere (`off`). Kept is the first copy of a shard; of several shards, that of the one that came into the "
        "workspace first, then of the first name.",
    )
    near_dedup: Literal["off", "minhash", "semantic"] = Field(
        "off",
        description="Whether to drop near-duplicates in the corpus, before anything is selected: `minhash` takes "
        "documents that share most runs of words, `semantic` those whose vectors are nearly the same. Kept is that of "
        "the shard that came into the workspace first, then of the first name, then of the first row.",
    )
    minhash: MinHashSettings = Field(
        default_factory=MinHashSettings, description="minhash: how near-duplicates are found."
    )
    semantic: SemanticSettings = Field(
        default_factory=SemanticSettings, description="semantic: how near-duplicates are found."
    )
    against: list[str] = Field(
        default_factory=list,
        description="Workspaces or datasets (folders, files or URLs) whose documents are not wanted again: one with an "
        "equal normalised text is dropped as `known`.",
    )
    decontaminate: list[str] = Field(
        default_factory=list,
        description="Files or folders of benchmark texts, in a column `text`: a document that shares 13 words in a row "
        "with one is dropped as `benchmark`.",
    )
    keep_dropped: bool = Field(
        False,
        description="Whether what ingest drops is kept in the workspace, with its text and the reason; the view "
        "`dropped` shows it.",
    )
    copy_text: bool = Field(
        True,
        description="Whether the workspace holds the texts. `false` leaves them in the source, which must be Parquet: "
        "the stages read it again, and refuse a file that was changed.",
    )
    groups: list[str] | None = Field(
        None,
        description="Columns by whose values it is counted what every step drops: a source file may have at most 1,000 "
        "values, the corpus 10,000. null: `dump` and the source's own columns of text with few values.",
    )
    on_wiped_group: Literal["warn", "stop"] = Field(
        "warn",
        description="When a step keeps nearly nothing of a group: `warn` says so in the log, the report and the card; "
        "`stop` ends the run.",
    )
    wiped_share: float = Field(
        0.05,
        gt=0,
        le=1,
        description="Share of a group of 20 documents or more that a step keeps at least, else the group is wiped out.",
    )
    on_bad_shard: Literal["quarantine", "fail"] = Field(
        "quarantine",
        description="On an unreadable source file: `quarantine` skips and reports it; `fail` ends the run.",
    )

    @model_validator(mode="after")
    def _changed_texts_are_kept(self) -> Self:
        changing = [one.kind for one in self.filters if one.kind in CHANGING]
        if changing and not self.copy_text:
            raise ValueError(
                f"copy_text: false reads texts from the source again, but a filter of kind {changing[0]} changes them: "
                "leave it out, or set copy_text to true"
            )
        return self

    @field_validator("exact_dedup", "near_dedup", mode="before")
    @classmethod
    def _yaml_reads_off_as_false(cls, scope: object) -> object:
        return "off" if scope is False else scope
