"""Define the settings of the section `engine`."""

from typing import Literal

from pydantic import Field

from fineweb_mask.models.settings.base import Settings


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
    workers: int | None = Field(
        None,
        ge=1,
        le=64,
        description="Tasks that run at the same time; null: 2, or the number of GPUs plus one if that is more. "
        "Fewer than eight cores without a GPU select from one block after the other.",
    )
    memory_limit: str = Field(
        "2GB",
        pattern=r"^\d+(\.\d+)?\s*[KMGT]i?B$",
        description="Memory that DuckDB may use while it looks for duplicates, before it spills to disk.",
    )
