"""The one base class of every settings model: strict, immutable, and closed to unknown keys."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A section of the settings; an unknown key or a wrong type is an error, never ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
