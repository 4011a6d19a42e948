"""Settings of the sections `source` and `ingest`."""

from typing import Literal

from pydantic import Field, field_validator

from fineweb_mask.models.settings.base import Settings
from fineweb_mask.models.urls import reject_credentials

NUMERIC_COLUMNS = frozenset({"language_score", "token_count", "n_chars"})
"""Columns of every document that hold a number, whatever the source's `extra_columns`."""


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
        return reject_credentials(path)


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
