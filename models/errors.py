"""Define the base of every error that this package raises on purpose, and its kinds.

A caller catches `FinewebMaskError`, or one kind of it. Any other exception is a bug.
"""


class FinewebMaskError(Exception):
    """Base of all errors of this package. The message says what to do."""


class SettingsError(FinewebMaskError, ValueError):
    """A setting or an option is wrong, or names something that does not exist."""


class DataError(FinewebMaskError, ValueError):
    """Documents, labels, scores or vectors cannot be used as they are."""


class ModelError(FinewebMaskError, RuntimeError):
    """A classifier or an encoder cannot be trained, loaded or run."""


class WorkspaceError(FinewebMaskError, RuntimeError):
    """The workspace cannot be used as asked: it is in use, incomplete, damaged or full."""


class StorageError(FinewebMaskError, OSError):
    """A file or an object cannot be read or written."""
