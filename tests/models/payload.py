"""Code that hides in the folder of a model, and leaves a mark where it is run."""

import os
import pickle
from pathlib import Path


class Payload:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.marker),)


def pickled_payload(marker: Path) -> bytes:
    """Return pickled weights that make the folder `marker`, which they do once here."""
    content = pickle.dumps(Payload(marker))
    pickle.loads(content)
    marker.rmdir()  # or it says so where the payload is none
    return content
