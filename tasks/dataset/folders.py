"""Name the folders of a dataset by the values of a column."""

import re
from urllib.parse import quote

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.settings import FLAT
from fineweb_mask.tasks.workspace.references import digest

UNKNOWN = "unknown"
"""The folder of documents without a value."""
MAX_FOLDER_NAME = 200  # file systems allow 255 bytes
DUMP = re.compile(r"CC-MAIN-[0-9-]+")
"""A name of one of Common Crawl's dumps, which keeps its capitals."""
UNSAFE = re.compile(r"%..|[A-Z]|^[._]|\.$")
"""In a quoted name: an escape, or a character that some reader or disk does not take as it is."""
TAKEN = re.compile(r"cc-main-[0-9-]+|(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
"""Names that a disk which ignores case takes for a dump's, and names of Windows's devices."""
MAX_FOLDERS = 10_000


def check_folders(folders: int, layout: str) -> None:
    """Check that a layout does not make too many folders.

    Raises
    ------
    WorkspaceError
        If it makes more than 10,000.
    """
    if folders > MAX_FOLDERS:
        raise WorkspaceError(
            f"materialize.layout: {layout!r} has more than {MAX_FOLDERS:,} values, a folder each: "
            f"choose a column with fewer, or {FLAT!r}"
        )


def folder_name(value: str) -> str:
    """Return the folder name for a column's value, which every reader and disk takes as it is.

    Characters other than small letters, digits and `._-~` are %-escaped, so that no two values share a folder where a
    disk ignores case or normalises Unicode; only names of Common Crawl's dumps keep their capitals. Also escaped are
    `.` and `_` at the beginning, where readers take a folder for a hidden one, a dot at the end, and the first letter
    of a device's name, such as `con`. `urllib.parse.unquote` returns the value, unless the name was too long: it is
    then cut, and a digest of the value is appended.

    >>> folder_name("CC-MAIN-2024-10"), folder_name("a/b"), folder_name("Case"), folder_name("__x__")
    ('CC-MAIN-2024-10', 'a%2Fb', '%43ase', '%5F_x__')
    """
    name = quote(value, safe="")
    if DUMP.fullmatch(name) is None:
        name = UNSAFE.sub(lambda found: found[0] if len(found[0]) > 1 else _escaped(found[0]), name)
        if TAKEN.fullmatch(name):
            name = _escaped(name[0]) + name[1:]
    return name if len(name) <= MAX_FOLDER_NAME else f"{name[:MAX_FOLDER_NAME]}-{digest(value)}"


def _escaped(character: str) -> str:
    return f"%{ord(character):02X}"
