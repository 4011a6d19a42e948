"""Settings of the section `engine`."""

from typing import Literal

from pydantic import Field, field_validator

from fineweb_mask.models.settings.base import Settings
from fineweb_mask.models.urls import is_url


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
