"""Settings of the sections `materialize` and `report`."""

from typing import Literal

from pydantic import Field, field_validator

from fineweb_mask.models.settings.base import Settings
from fineweb_mask.models.urls import reject_credentials, require_writable

FLAT = "flat"
"""The `materialize.layout` that puts all files into one folder."""


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
        return None if output is None else require_writable(reject_credentials(output))


TEXT_IS_NO_GROUP = "the text itself is no group; name a column such as a page's type"


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
