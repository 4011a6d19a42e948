"""Define the settings of the sections `materialize` and `report`."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from fineweb_mask.models.settings.base import Settings, Text, WritablePlace

FLAT = "flat"
"""Value of `materialize.layout` for all files in one folder."""


class ExportSettings(Settings):
    """Training files that are made of the dataset."""

    format: Literal["parquet", "megatron", "nanotron"] = Field(
        description="`parquet` with few documents per row group, the last file for validation; tokens as `megatron` "
        "(.bin and .idx) or `nanotron` (.ds)."
    )
    name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Folder below `exports` in the workspace; null: the format.",
    )
    tokenizer: Text | None = Field(
        None,
        description="megatron, nanotron: a tokenizer.json, its folder, or a model of the Hugging Face hub. The token "
        "after each document is the `eos_token` of its tokenizer_config.json, or `<|endoftext|>`.",
    )
    shuffle: bool = Field(
        True, description="Put all documents in random order; `false` keeps the order of the dataset's files."
    )

    @property
    def folder(self) -> str:
        """The name of the folder."""
        return self.name or self.format

    @model_validator(mode="after")
    def _tokens_need_a_tokenizer(self) -> Self:
        if self.format != "parquet" and self.tokenizer is None:
            raise ValueError(f"tokenizer: the format {self.format} needs one: give a tokenizer.json, or a model's name")
        if self.format == "parquet" and self.tokenizer is not None:
            raise ValueError(f"tokenizer: the format {self.format} holds texts: leave it out")
        return self


class MaterializeSettings(Settings):
    """How the dataset is written."""

    output: WritablePlace | None = Field(
        None,
        description="Folder or URL (s3://, gs://, az://) of the dataset; null: `dataset` in the workspace. The whole "
        "folder is replaced, so it must be new, empty or contain a dataset of this pipeline.",
    )
    title: Text = Field("Selected documents", description="Title of the dataset card.")
    license: Text | None = Field(
        None,
        description="Licence identifier for the dataset card; FineWeb's is odc-by. None: `push` refuses the dataset.",
    )
    source_datasets: list[str] = Field(
        default_factory=list, description="Hub names of the datasets that the source comes from, for the dataset card."
    )
    layout: Text = Field(
        "dump",
        description="Column (`dump`, `language`, ...) that gets one folder per value, or `flat`: a single folder.",
    )
    file_size: int = Field(
        512 * 2**20,
        ge=2**20,
        description="Target size of a dataset file, in bytes; an export divides its documents evenly among as many "
        "files as that makes, at least two.",
    )
    export: list[ExportSettings] = Field(
        default_factory=list, description="Training files that are made of the dataset, each in its own folder."
    )

    @field_validator("export")
    @classmethod
    def _exports_have_folders_of_their_own(cls, export: list[ExportSettings]) -> list[ExportSettings]:
        names = [one.folder for one in export]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two exports are named {twice[0]!r}: give each its own name")
        return export


TEXT_IS_NO_GROUP = "the text itself cannot be a group: name another column, such as a page's type"


class ReportSettings(Settings):
    """What the report shows."""

    by: list[str] | None = Field(
        None,
        description="Columns by whose values it is counted what every step drops and what is selected: of text, "
        "numbers, times or booleans, at most 10,000 values. null: `dump`, and the source's own columns of text with "
        "few values.",
    )
