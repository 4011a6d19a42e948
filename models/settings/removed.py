"""List the settings that are gone, and what to write instead, for the error that a recipe with one of them gets."""

REMOVED: dict[str, str] = {
    "embedding.keep": "leave it out: vectors are always stored",
}
"""What to write instead of a setting, by its name with dots."""
