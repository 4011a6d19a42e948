"""Flip bits of every file of a workspace, and ask: an answer is the same, or an error that names a file; `make soak`.

`python -m tests.soak.flip --flips 1000`: each flip is in a file chosen at random, of all that a run left, and keeps the
file's time of change, as a failing disk does. Of Parquet files it is in a page: a footer has no checksum. Then the rows
of every stage are read as a run reads them, what the catalog itself holds as `fineweb-mask sql` reads it, the dataset
is verified, and the state of the stages is looked at. Exit status 1 with the flips that gave other rows without a word,
or an error that is none of this package's, else 0.
"""

import argparse
import hashlib
import io
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from fineweb_mask.flows.status.catalog import ensure_catalog
from fineweb_mask.flows.status.inspection import inspect_workspace, status_of
from fineweb_mask.models.errors import message_of
from fineweb_mask.tasks.catalog.query import answers, open_catalog
from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance, verify
from fineweb_mask.tasks.registry import STAGE_FOLDERS
from fineweb_mask.tasks.storage.parquet import read_metadata, read_table
from fineweb_mask.tasks.workspace import manifest
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.soak.workspaces import RUN, Soak, files

SETTINGS = ("--set=ingest.near_dedup=minhash", "--set=ingest.keep_dropped=true")
NOT_READ = ("cache/", "reports/", "runs/", ".")
"""What no command reads for an answer: times, pages for a browser, records of runs, locks."""
NOTICED = "an error that names what is wrong"


def rows_of(folder: str, workspace: Path) -> str:
    """Return a digest of all rows of a stage."""
    found = hashlib.sha256()
    for path in sorted((workspace / folder).rglob("*.parquet")):
        for batch in read_table(path).to_batches():
            found.update(batch.serialize())
    return found.hexdigest()


def view_of(view: str, workspace: Path) -> str:
    """Return a digest of all rows of a view."""
    ensure_catalog(str(workspace))
    opened, found = Workspace(workspace), io.BytesIO()
    with open_catalog(opened, "1GB") as connection:
        for answer in answers(connection, f"FROM {view} ORDER BY ALL"):
            answer.write_json(found)
    return hashlib.sha256(found.getvalue()).hexdigest()


def dataset_of(workspace: Path) -> str:
    """Return what `verify` finds."""
    dataset = find_dataset(str(workspace))
    found = verify(dataset, read_provenance(dataset))
    return NOTICED if found.status == "broken" else found.model_dump_json()


def state_of(workspace: Path) -> str:
    """Look at the state of all stages; what is damaged may be missing in it."""
    status_of(inspect_workspace(workspace))
    return ""


QUESTIONS: dict[str, Callable[[Path], str]] = {
    **{folder: partial(rows_of, folder) for folder in STAGE_FOLDERS},
    **{view: partial(view_of, view) for view in ("drops", "losses")},
    "dataset": dataset_of,
    "recipe": lambda workspace: LastRun.load(Workspace(workspace)).model_dump_json(),
    "state": state_of,
}


def asked(workspace: Path) -> dict[str, str]:
    """Return the answers to all questions."""
    manifest._digest_once.cache_clear()
    found = dict[str, str]()
    for name, ask in QUESTIONS.items():
        try:
            found[name] = ask(workspace)
        except Exception as error:  # noqa: BLE001 - what a command would say
            found[name] = NOTICED if message_of(error) is not None else f"{type(error).__name__}: {error}"
    return found


def main() -> int:
    """Flip bits, and compare the answers."""
    parser = argparse.ArgumentParser(description="Flip bits of a workspace's files, and compare the answers.")
    parser.add_argument("--flips", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    numbers, kinds, failed = random.Random(options.seed), Counter[str](), 0
    with tempfile.TemporaryDirectory() as temporary:
        whole, copy = Path(temporary, "whole"), Path(temporary, "copy")
        Soak(Path(temporary)).finish(whole, (*RUN, *SETTINGS))
        shutil.copytree(whole, copy)
        expected = asked(copy)
        assert NOTICED not in expected.values(), expected
        names = sorted(name for name, path in files(whole).items() if path.stat().st_size)
        names = [name for name in names if not name.startswith(NOT_READ)]
        for name in numbers.choices(names, k=options.flips):
            content = bytearray((whole / name).read_bytes())
            end = len(content)
            if name.endswith(".parquet"):
                end -= read_metadata(whole / name).serialized_size + 8  # its length and PAR1
            bit = numbers.randrange(8 * end)
            content[bit // 8] ^= 1 << bit % 8
            (copy / name).write_bytes(content)
            shutil.copystat(whole / name, copy / name)
            differ = {one: found for one, found in asked(copy).items() if found != expected[one]}
            kinds["noticed" if NOTICED in differ.values() else "harmless, or not read"] += 1
            if bad := {question: found for question, found in differ.items() if found != NOTICED}:
                failed += 1
                print(f"{name}, bit {bit}: {bad}", flush=True)
            for again in {name, "catalog.duckdb"}:
                shutil.copy2(whole / again, copy / again)
    print(f"{options.flips} flips over {len(names)} files: {dict(kinds)}, {failed} wrong")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
