"""Read bytes as files that anyone may give: nothing but an error of this package may come of it.

A target takes the content of a file: `python -m tests.fuzz.run` makes many of them, the tests take the seeds.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

from fineweb_mask.models.errors import FinewebMaskError
from fineweb_mask.models.settings import SourceSettings
from fineweb_mask.tasks.source.reader import ShardReader
from tests.tasks.source_files import discover

SEEDS = Path(__file__).parent / "seeds"
SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_folder = Path(tempfile.mkdtemp(prefix="fineweb-mask-fuzz-"))


def read_jsonl(content: bytes) -> None:
    """Read a file of JSON Lines, of the compression that the first byte names; rows and problems must agree."""
    if not content:
        return
    path = _folder / f"lines{SUFFIXES[content[0] % len(SUFFIXES)]}"
    path.write_bytes(content[1:])
    source = SourceSettings(path=str(path))
    [shard] = discover(source)
    try:
        for batch, problems in ShardReader(shard, source).batches():
            batch.validate(full=True)
            if len(problems) != batch.num_rows:
                raise AssertionError(f"{len(problems)} problems of {batch.num_rows} rows")
    except FinewebMaskError:
        return


TARGETS: dict[str, Callable[[bytes], None]] = {"jsonl": read_jsonl}
