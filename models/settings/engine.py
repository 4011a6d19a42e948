"""Define the settings of the section `engine`."""

from typing import Literal

from pydantic import Field

from fineweb_mask.models.settings.base import Settings


class EngineSettings(Settings):
    """Where and how many tasks run at the same time."""

    kind: Literal["local", "ray"] = Field(
        "local",
        description="`local`: jobs run in threads of this process. `ray`: in the processes of a Ray cluster, whose "
        "host:port RAY_ADDRESS names; without, of a Ray of this machine alone that ends with the run.",
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
