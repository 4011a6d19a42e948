"""What a workspace's last run was asked for."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel

from models.settings import PipelineSettings
from tasks.lake import Workspace
from tasks.mirror import brought
from tasks.whole_files import written_file

NAME = "run.json"


class LastRun(BaseModel):
    """The recipe of a workspace's last run, kept there as `run.json`."""

    settings: PipelineSettings
    folder: str  # that relative paths in the settings start from

    @staticmethod
    def path(workspace: Workspace) -> Path:
        """Return where it lies."""
        return workspace.root / NAME

    def keep(self, workspace: Workspace) -> None:
        """Write it to the workspace."""
        with written_file(self.path(workspace)) as partial:
            partial.write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def of(cls, workspace: Workspace) -> Self:
        """Read it from the workspace."""
        return cls.model_validate_json(brought(cls.path(workspace)).read_text())
