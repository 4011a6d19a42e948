"""Refuse to write where a person's files would be lost: over what is read, in a workspace or a dataset, over a file.

Every command that writes to a place that a person names calls `check_output` before any work.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.urls import is_url
from fineweb_mask.tasks.source.discovery import GLOB_CHARACTERS, HIDDEN
from fineweb_mask.tasks.source.opening import ending_of
from fineweb_mask.tasks.storage.atomic import check_can_write
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, read_manifest
from fineweb_mask.tasks.workspace.workspace import is_workspace

URL = re.compile(r"\w\w+:/")
"""Beginning of a URL, also of one that was taken for a path, which has one slash."""


class OutputError(SettingsError):
    """Nothing may be written to the place that a setting or an option names."""


def check_output(
    path: str | Path,
    setting: str,
    inputs: Iterable[str | Path] = (),
    *,
    replaces: bool = False,
    folder: bool = False,
    within: str | None = None,
) -> None:
    """Check that a file or folder of this machine can be written where a person wants it; nothing is left there.

    Parameters
    ----------
    path
        The file or folder.
    setting
        What names it, such as `--output`, for the message.
    inputs
        Files, folders, patterns and URLs that are read.
    replaces
        Whether what is there may be replaced: `--force` was given, or it was written by the same command.
    folder
        Whether a folder is written. One that is empty may be there.
    within
        Name of the folder of a workspace in which it may be.

    Raises
    ------
    OutputError
        If something would be lost, or `path` is a URL.
    SettingsError
        If nothing can be written there.
    """
    if URL.match(str(path)):
        raise OutputError(f"{setting}: {path} must be a {'folder' if folder else 'file'} of this machine")
    check_apart({setting: path}, inputs, folder=folder)
    place, link = Path(os.path.realpath(path)), Path(path).absolute()  # one, unless a link is what is replaced
    for around in dict.fromkeys((*place.parents, *(link.parent.resolve() / link.name).parents)):
        is_one = is_workspace(around) and (within is None or place.parent != around / within)
        if is_one or ((around / PROVENANCE).is_file() and read_manifest(around / PROVENANCE) is not None):
            kind = "workspace" if is_one else "dataset"
            raise OutputError(
                f"{setting}: {path} is in the {kind} {around}, which is not the command's: name another place"
            )
    if folder:
        if not replaces and place.exists() and not (place.is_dir() and not any(place.iterdir())):
            raise OutputError(
                f"{setting}: {path} holds something else than the command writes, and would be replaced: give a new "
                "or empty folder"
            )
    elif place.exists() and not place.is_file():
        raise OutputError(f"{setting}: {path} is a folder or a device: name a file")
    elif os.path.lexists(path) and not replaces:
        raise OutputError(f"{setting}: {path} exists: add --force to replace it, or name another file")
    check_can_write(place if folder else link.parent, setting)


def check_apart(written: Mapping[str, str | Path], inputs: Iterable[str | Path], *, folder: bool = True) -> None:
    """Check that nothing that is written is what is read, and that neither is inside of the other.

    Overlaps are refused rather than left out, for what a folder holds is then read whole or not at all. A file may be
    in a folder that is read if its name is not that of documents.

    Parameters
    ----------
    written
        Folders or URLs by the settings that name them; files if not `folder`.
    inputs
        See `check_output`.

    Raises
    ------
    OutputError
        If they overlap.
    """
    places = {setting: (path, _resolved(str(path))) for setting, path in written.items()}
    for read in map(str, inputs):
        found = _resolved(read)
        for setting, (path, place) in places.items():
            if not folder and (found == place or _is_same_file(found, place)):
                raise OutputError(f"{setting}: {path} is read, too ({read}), and would be replaced: name another file")
            if found == place or found.startswith(f"{place}/") or _would_be_read(place, found, folder=folder):
                raise OutputError(
                    f"{setting}: {path} and {read}, which is read, overlap: what is written there would be read as "
                    "documents, or what is read replaced. Choose places of which none is inside of the other"
                )


def _would_be_read(place: str, found: str, *, folder: bool) -> bool:
    """Return whether a folder or a pattern finds what is written to a place."""
    if not folder and not ending_of(place):
        return False
    has_pattern = bool(GLOB_CHARACTERS & set(found))
    if has_pattern and not folder and fnmatchcase(place, found):
        return True
    is_deep = not has_pattern or "**" in found
    while GLOB_CHARACTERS & set(found):
        found = found.rpartition("/")[0]
    around = f"{found.rstrip('/')}/"
    below = place.removeprefix(around).split("/")
    return is_deep and place.startswith(around) and not any(part.startswith(HIDDEN) for part in below)


def _resolved(path: str) -> str:
    """Return a URL without the slash at its end, or a local path without links."""
    local = path.removeprefix("file://")
    is_no_path = is_url(local) or "\0" in local  # that no file has such a name is said when it is looked for
    return path.rstrip("/") if is_no_path else os.path.realpath(local)


def _is_same_file(one: str, other: str) -> bool:
    """Return whether two paths are names of one file, such as hard links."""
    with suppress(OSError):
        return os.path.isfile(other) and os.path.samefile(one, other)  # noqa: PTH113, PTH121 - also of URLs
    return False
