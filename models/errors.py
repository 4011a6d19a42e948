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


def message_of(error: BaseException) -> str | None:
    """Return what to print of an error that a person can mend; None of a bug.

    Such errors are those of this package, those of the operating system, such as a file without permission, and memory
    that ran out, of this machine or, as torch says, of a GPU.

    Examples
    --------
    >>> message_of(DataError("labels are empty: add some"))
    'labels are empty: add some'
    >>> message_of(PermissionError(13, "Permission denied", "corpus/a.parquet"))
    'corpus/a.parquet: Permission denied'
    >>> message_of(MemoryError()).partition(": use")[0]
    'memory ran out: the system gave no more'
    >>> message_of(KeyError("text"))
    """
    if isinstance(error, FinewebMaskError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        why = " ".join(str(error).split()) or "the system gave no more"
        return f"memory ran out: {why}: use a smaller engine.workers or selection.block_size, and run again to resume"
    return None
