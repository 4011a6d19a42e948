"""Define the settings of the sections `source` and `ingest`."""

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from fineweb_mask.models.settings.base import Place, Settings, Text

NUMERIC_COLUMNS = frozenset({"language_score", "token_count", "n_chars"})
"""Numeric columns that every document has, independent of `source.extra_columns`."""

LABEL_COLUMNS = NUMERIC_COLUMNS | {"id", "dump", "url", "date", "file_path", "language"}
"""Columns that every document has and that may name its group: all but the text and its hash."""


class SourceSettings(Settings):
    """Where the raw documents are, and the names of their columns."""

    path: Place = Field(
        description="File, folder or glob; a local path or a URL (s3://, gs://, az://, hf://, https://)."
    )
    format: Literal["auto", "parquet", "jsonl", "warc"] = Field(
        "auto",
        description="File format; `auto` takes it from the file name (.parquet; .jsonl, .ndjson, .json; .warc, .wet; "
        "compressed as .gz, .bz2, .xz or .zst, too). `warc` is a crawl, of whose pages the main text is "
        "extracted.",
    )
    text_column: Text = Field("text", description="Column with the document's text; `a.b` is b within a.")
    id_column: Text = Field(
        "id", description="Column with the document's id; a missing or null id is replaced by a stable one."
    )
    extra_columns: Literal["all"] | list[str] = Field(
        "all",
        description="Columns other than FineWeb's nine to keep in the dataset: `all` that up to 16 files have, or a "
        "list of names; `a.b` is b within a.",
    )


class CopiesSettings(Settings):
    """Which of several near-duplicates, or of pages of one URL, is kept."""

    keep: Literal["earliest", "longest"] = Field(
        "earliest",
        description="The copy that is kept: the `earliest` is of the shard of the first name, then of the first row; "
        "the `longest` has most characters.",
    )
    prefer: dict[str, list[str]] = Field(
        default_factory=dict,
        max_length=1,
        description="A column, and those of its values that are preferred before `keep` decides, the best first: "
        "`{source: [wiki, books]}`.",
    )
    exempt: dict[str, list[str]] = Field(
        default_factory=dict,
        max_length=1,
        description="A column, and those of its values whose documents are left out of near_dedup and url_dedup: they "
        "are neither dropped as copies nor drop others, as those of a source of texts that are similar by design, "
        "`{source: [laws, recipes]}`. Equal texts are dropped all the same, by exact_dedup.",
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
        "or nowhere (`off`). Kept is the first copy of a shard; of several shards, that of the first name.",
    )
    near_dedup: Literal["off", "minhash"] = Field(
        "off",
        description="Whether to drop near-duplicates in the corpus, before anything is selected: `minhash` takes "
        "documents that share most runs of words.",
    )
    near_threshold: float = Field(
        0.7,
        gt=0,
        le=1,
        description="Least similarity of near-duplicates: the share of the runs of five words of two texts that both "
        "have (Jaccard similarity), measured exactly.",
    )
    url_dedup: bool = Field(
        False,
        description="Whether to keep one document of each URL in the corpus; URLs are compared without `http`, `www.`, "
        "a fragment and a slash at the end.",
    )
    copies: CopiesSettings = Field(
        default_factory=CopiesSettings,
        description="near_dedup and url_dedup: which of several copies is kept.",
    )
    against: list[str] = Field(
        default_factory=list,
        description="Workspaces or datasets (folders, files or URLs) whose documents are not wanted again: one with an "
        "equal normalised text is dropped as `known`; with `near_dedup: minhash`, so is a near-duplicate of one.",
    )
    decontaminate: list[str] = Field(
        default_factory=list,
        description="Files or folders of benchmarks, with columns `question`, `answer` and `passage`, or `text`: a "
        "document that holds a question, a passage or a text of them is dropped as `benchmark`.",
    )
    decontaminate_threshold: float = Field(
        0.8,
        gt=0,
        le=1,
        description="Share of an item, by how rare its phrases are, from which a document that holds it is dropped; "
        "one of fewer than 20 words must be whole.",
    )
    exclude: list[str] = Field(
        default_factory=list,
        description="Lists of documents that are not wanted any more, files with a name on each line: a URL, "
        "`*.example.org` for all of a domain, an id, or a hash of a text. Nothing is selected from these documents; no "
        "model runs again.",
    )
    erase: bool = Field(
        False,
        description="Whether the shards that hold documents of `exclude` are written again without them; "
        "`fineweb-mask gc` then removes the files that held them.",
    )
    keep_dropped: bool = Field(
        False,
        description="Whether the texts of what ingest drops are kept in the workspace; the view `fates` shows them.",
    )
    on_wiped_group: Literal["warn", "stop"] = Field(
        "warn",
        description="When a step keeps less than 5% of a group of 20 documents or more: `warn` says so in the log, the "
        "report and the card; `stop` ends the run.",
    )
    on_bad_shard: Literal["quarantine", "fail"] = Field(
        "quarantine",
        description="On an unreadable source file: `quarantine` skips and reports it; `fail` ends the run.",
    )

    @model_validator(mode="after")
    def _lists_what_is_erased(self) -> Self:
        if self.erase and not self.exclude:
            raise ValueError("erase needs `exclude`, the lists of what is erased, received none: name them")
        return self

    @property
    def finds_copies(self) -> bool:
        """Whether near-duplicates are looked for, or pages of one URL."""
        return self.near_dedup != "off" or self.url_dedup

    @property
    def compares_shards(self) -> bool:
        """Whether documents of different files are compared, so that duplicates are known when all are ingested."""
        return self.exact_dedup == "corpus" or self.finds_copies

    @field_validator("exact_dedup", "near_dedup", mode="before")
    @classmethod
    def _yaml_reads_off_as_false(cls, scope: object) -> object:
        return "off" if scope is False else scope
