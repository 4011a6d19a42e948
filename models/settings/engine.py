"""Define the settings of the section `engine`."""

from typing import Literal

from pydantic import Field, field_validator

from fineweb_mask.models.settings.base import Settings, Text
from fineweb_mask.models.urls import is_url


class JobResources(Settings):
    """What one job of a stage needs."""

    num_cpus: float = Field(
        1, gt=0, description="Cores of a Ray node; of `score`, also the processes that score without a model on a GPU."
    )
    memory: int | None = Field(None, ge=2**20, description="Bytes that Ray sets aside; null: none.")


class EngineSettings(Settings):
    """Where and how many tasks run at the same time."""

    kind: Literal["local", "ray"] = Field(
        "local",
        description="`local`: jobs run in threads of this process. `ray`: in the processes of a Ray cluster, whose "
        "host:port RAY_ADDRESS names; without, of a Ray of this machine alone that ends with the run.",
    )
    resources: dict[str, JobResources] = Field(
        default_factory=dict,
        description="What a job needs, by stage; by default one core. Without `ray`, only that of `score` is read: by "
        "default a process for each core of this machine; with `{score: {num_cpus: 1}}` no extra one.",
    )
    workers: int = Field(
        2,
        ge=1,
        le=64,
        description="Tasks that run at the same time; one of them uses the GPU. Fewer than eight cores without a GPU "
        "select from one block after the other.",
    )
    memory_limit: str = Field(
        "2GB",
        pattern=r"^\d+(\.\d+)?\s*[KMGT]i?B$",
        description="Memory that DuckDB may use while it looks for duplicates, before it spills to disk.",
    )
    scratch: Text | None = Field(
        None,
        description="Local folder for copies of files of a workspace at a URL, such as models; null: `fineweb-mask` "
        "in the user's cache folder.",
    )

    @field_validator("scratch")
    @classmethod
    def _scratch_is_local(cls, scratch: str | None) -> str | None:
        if scratch is not None and is_url(scratch):
            raise ValueError("must be a folder on this machine, not a URL")
        return scratch
