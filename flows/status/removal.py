"""Remove documents from a workspace on request: find and list them, rewrite the files that hold them, delete the rest.

First the list is written, with what is still to be done: from then on no run brings a document back. Then the files of
the shards that held them are written again without them; the recipe runs (`fineweb_mask.flows.ledger.remove`), which
selects the next best and replaces the dataset as a whole; and what else holds a text is deleted. All of it can be done
again: a removal that was killed is finished by the next. Nothing here needs Prefect.
"""

import hashlib
import shutil
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from fineweb_mask.flows.curate import ingest_shards, prepare
from fineweb_mask.flows.pipeline.records import shard_files
from fineweb_mask.flows.pipeline.run import Run, UnfinishedError
from fineweb_mask.flows.pipeline.selection import Selection, select
from fineweb_mask.flows.status.garbage import remove_of_shards
from fineweb_mask.flows.status.inspection import inspect_recipe, look_at
from fineweb_mask.models.errors import FinewebMaskError, SettingsError, WorkspaceError
from fineweb_mask.models.ledger.removal import DIGEST_BYTES, KINDS, Digests, Kind, Unwanted
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.dataset.output import MATERIALIZE, Output, published
from fineweb_mask.tasks.dataset.partition import Partitioning, remove_spilled
from fineweb_mask.tasks.dataset.parts import Parts
from fineweb_mask.tasks.embed import EmbedJob
from fineweb_mask.tasks.export import EXPORT, check_format
from fineweb_mask.tasks.export import FOLDER as EXPORTS
from fineweb_mask.tasks.ingest import IngestJob
from fineweb_mask.tasks.ledger.receipt import Receipt, compared, free_name, hashes, now
from fineweb_mask.tasks.ledger.rewrite import rewrite_documents, rewrite_dropped, rewrite_rows
from fineweb_mask.tasks.ledger.search import (
    Found,
    Rows,
    asked_for,
    hashes_of,
    ids_of,
    not_found,
    search,
    selected_of,
    twins_of,
)
from fineweb_mask.tasks.materialize import MaterializeJob
from fineweb_mask.tasks.score import ScoreJob
from fineweb_mask.tasks.score_embed import ScoreEmbedJob
from fineweb_mask.tasks.storage.atomic import remove_file
from fineweb_mask.tasks.storage.remote.copies import local_copies
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.listing import FOLDERS
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, Manifest, read_manifest
from fineweb_mask.tasks.workspace.references import ShardFiles, digest, shard_and_tag
from fineweb_mask.tasks.workspace.removals import Removals
from fineweb_mask.tasks.workspace.stage_parquet import take_rows
from fineweb_mask.tasks.workspace.workspace import Workspace

MOST = 0.05
"""Share of the dataset above which a removal must be asked for again."""
LISTED = 1_000
"""Names of no document that are listed."""
AT_ONCE = 4
"""Shards that are rewritten at the same time."""
PAGES = tuple("explore compare sweep tune price audit score-check".split())
"""Folders of pages, maps and held-out documents, which may show a text; their commands make them again."""
CACHED = tuple("texts dataset pages materialize materialize-spill ledger".split())
"""What this machine may hold of texts and vectors, in its cache folder."""
NO_ROWS = np.empty(0, dtype=np.int64)


class Requested(BaseModel):
    """What a list asks to remove, and what there is of it."""

    names: int  # different ones, in the list
    unknown: int  # of which there never was a document
    unknown_names: list[str]  # the first of them
    documents: int = 0  # that are removed, with the next two
    copies: int = 0  # of another name, with the text of one
    twins: int = 0  # near-duplicates
    twins_left: int | None = 0  # None: the recipe looks for none
    twin_ids: list[str] = []  # of the first near-duplicates, removed or left
    selected: int = 0  # of these, documents of the dataset
    of_dataset: int  # documents of the dataset before


def asked_in(urls: str | None, ids: str | None, domains: str | None, texts: str | None) -> tuple[Kind, Path] | None:
    """Return the list that is given, and what is in it; None if none is.

    Raises
    ------
    SettingsError
        If there are several.
    """
    given = [(kind, Path(path)) for kind, path in zip(KINDS, (urls, ids, domains, texts), strict=True) if path]
    if len(given) > 1:
        names = " and ".join(f"--{kind}s" for kind, _ in given)
        raise SettingsError(f"{names} are given: name one list, and remove the other after it")
    return given[0] if given else None


def check_asked(asked: object, *, goes_on: bool) -> None:
    """Check that there is something to do.

    Raises
    ------
    SettingsError
        If there is no list, and no removal to be finished.
    """
    if asked is None and not goes_on:
        raise SettingsError("name what is removed: give a file by --urls, --ids, --domains or --texts")


def request(
    settings: PipelineSettings,
    kind: Kind,
    path: Path,
    *,
    twins: bool = False,
    most: float = MOST,
    yes: bool = False,
    dry_run: bool = False,
) -> Requested:
    """Find the documents of a list, and enter it in that of the workspace, with what is to be done.

    Parameters
    ----------
    settings
        The recipe of the workspace, which was run to the end.
    kind, path
        What is in the file.
    twins
        Whether near-duplicates are removed, too.
    most
        Share of the documents of the dataset that are removed without `yes`.
    dry_run
        Whether nothing is written.

    Raises
    ------
    SettingsError
        If the list cannot be read, or too much would be removed.
    WorkspaceError
        If a run uses the workspace, or its recipe was not run to the end.
    """
    workspace = Workspace(settings.workspace, settings.engine.scratch)
    asked = asked_for(path, kind)
    if twins and settings.ingest.near_dedup == "off":
        raise SettingsError("--twins: the recipe looks for no near-duplicates: set ingest.near_dedup, and run it first")
    with workspace.idle():
        removals, look = Removals.read(workspace), inspect_recipe(workspace, settings)
        if removals.pending is not None:
            raise WorkspaceError(f"{workspace.address}: a removal is not finished: first run remove without a list")
        if not any(file is not None for job, file in look.found[MATERIALIZE] if isinstance(job, MaterializeJob)):
            raise WorkspaceError(
                f"{workspace.address}: its recipe was not run to the end on the files that are there: run it first, "
                "and remove from what it made then"
            )
        shards, record = shard_files(look), record_of(workspace, settings)
        named = search(workspace, Unwanted({kind: asked}))
        every, near, copies = _with_copies(workspace, shards, named, twins=twins)
        current = {file.path: file.name for _, file in look.found["ingest"] if file is not None}
        own, near, copies = (
            {path: rows for path, rows in found.items() if path in current} for found in (every.rows, near, copies)
        )
        of_dataset = 0 if record is None else int(record.details["rows"])
        known = removals.with_found(kind, asked, {kind: named.by[kind]} if kind in named.by else {}, now())
        unknown, unknown_names = not_found(path, kind, asked[known.was_found(kind, asked)], LISTED)
        requested = Requested(
            names=len(asked),
            unknown=unknown,
            unknown_names=unknown_names,
            documents=_count(own),
            copies=_count(copies),
            twins=_count(near) if twins else 0,
            twins_left=None if settings.ingest.near_dedup == "off" else 0 if twins else _count(near),
            twin_ids=ids_of(workspace, near, LISTED),
            selected=selected_of(workspace, shards, own),
            of_dataset=of_dataset,
        )
        if requested.selected > most * of_dataset and not (yes or dry_run):
            raise SettingsError(
                f"--{kind}s: {requested.selected:,} of the {of_dataset:,} documents of the dataset "
                f"({requested.selected / of_dataset:.1%}) would be removed, more than --most {most:g}: look at the "
                "list, and add --yes to remove them"
            )
        if dry_run:
            return requested
        texts = hashes_of(workspace, every.rows)
        known = known.with_found("text", texts, {"text": texts}, now())
        if every.rows or every.dropped:
            receipt = _receipt(workspace, requested, kind, asked, texts, every)
            changed = {
                current[path]: digest([removals.shards.get(current[path]), _source_rows(workspace, path, rows)])
                for path, rows in own.items()
            }
            pending = {
                "receipt": free_name(workspace),
                "before": {name: removals.shards.get(name) for name in changed},
                "record": receipt.model_dump(mode="json"),
                "dataset": {} if record is None else {name: one.sha256 for name, one in record.files.items()},
            }
            known = known._replace(shards={**removals.shards, **changed}, pending=pending)
        known.write(workspace)
        return requested


def record_of(workspace: Workspace, settings: PipelineSettings) -> Manifest | None:
    """Return the record of the dataset that is there."""
    output = Output.of(workspace, settings.materialize)
    return read_manifest(output.folder / PROVENANCE) if output.url is None else published(output.url)


def _with_copies(
    workspace: Workspace, shards: Sequence[ShardFiles], named: Found, *, twins: bool
) -> tuple[Found, Rows, Rows]:
    """Return documents with all that have the text of one, their near-duplicates, and which are copies.

    With `twins`, the near-duplicates and their copies are among the first.
    """
    every = _and_copies(workspace, named)
    copies = _without(every.rows, named.rows)
    near = twins_of(workspace, shards, every.rows)
    if twins and near:
        every = _and_copies(workspace, every._replace(rows=_merged(every.rows, near)))
        near = _without(every.rows, _merged(named.rows, copies))
    return every, near, copies


def _and_copies(workspace: Workspace, found: Found) -> Found:
    texts = hashes_of(workspace, found.rows)
    if not len(texts):
        return found
    copies = search(workspace, Unwanted({"text": texts}))
    return Found(_merged(found.rows, copies.rows), sorted({*found.dropped, *copies.dropped}), found.by)


def _merged(one: Rows, other: Rows) -> Rows:
    return {path: np.union1d(one.get(path, NO_ROWS), other.get(path, NO_ROWS)) for path in {**one, **other}}


def _without(rows: Rows, others: Rows) -> Rows:
    left = {path: np.setdiff1d(own, others.get(path, NO_ROWS)) for path, own in rows.items()}
    return {path: own for path, own in left.items() if len(own)}


def _count(rows: Rows) -> int:
    return sum(map(len, rows.values()))


def _source_rows(workspace: Workspace, path: str, rows: NDArray[np.int64]) -> list[int]:
    with local_copies():
        found: list[int] = take_rows(workspace.local(path), rows, ["source_row"])["source_row"].to_pylist()
    return found


def _receipt(
    workspace: Workspace, requested: Requested, kind: Kind, asked: Digests, texts: Digests, found: Found
) -> Receipt:
    """Return the receipt as far as it is known before anything is changed."""
    shards = {_shard_of(path) for path in (*found.rows, *found.dropped)}
    files = hashes(workspace, _files_of(workspace, shards))
    return Receipt(
        **requested.model_dump(include={"documents", "copies", "twins", "twins_left", "selected"}),
        asked={kind: requested.names},
        asked_digest=hashlib.sha256(asked.tobytes()).hexdigest(),
        found=requested.names - requested.unknown,
        texts=[bytes(text).ljust(DIGEST_BYTES, b"\0").hex() for text in texts],
        rows={"before": requested.of_dataset},
        files=compared(files, {}),
        dataset={},
        started=now(),
    )


def _shard_of(path: str) -> str:
    """Return the shard of a stage file."""
    found = shard_and_tag(path.partition("/")[2])
    return path if found is None else found[0]


def _files_of(workspace: Workspace, shards: Container[str]) -> list[str]:
    """Return the stage files of some shards."""
    return [path for folder in FOLDERS for path in workspace.sizes(folder) if _shard_of(path) in shards]


class Before(NamedTuple):
    """What was selected before a removal; empty where it is not there any more."""

    shards: Mapping[str, ShardFiles]  # by name, with their masks
    partitions: frozenset[str]  # fingerprints of those of the dataset that is there, if links to its files will do


def rewrite(workspace: Workspace, settings: PipelineSettings, removals: Removals) -> Before:
    """Write the documents, scores and vectors of the shards that a removal touches, from what they were before.

    Raises
    ------
    WorkspaceError
        If a run uses the workspace.
    """
    before = dict((removals.pending or {})["before"])
    warned = settings.ingest.model_copy(update={"on_wiped_group": "warn"})  # else it is counted before scores are made
    settings = settings.model_copy(update={"ingest": warned})
    with workspace.idle():
        earlier = look_at(workspace, settings)
        earlier.removed = {**removals.shards, **before}
        found = Before({}, frozenset())
        with suppress(UnfinishedError, BadShardError):
            selection = select(earlier, prepare(earlier))
            shards = {shard.name: shard for shard in selection.shards}
            found = Before(shards, _partitions(earlier, selection))
        planned = look_at(workspace, settings)
        with suppress(UnfinishedError, BadShardError):
            ingest_shards(planned)
        _in_pairs(_jobs(earlier, before), _jobs(planned, before), IngestJob, removals.unwanted)
        planned = look_at(workspace, settings)
        with suppress(UnfinishedError, BadShardError):
            prepare(planned)
        for kind in (ScoreJob, EmbedJob):
            _in_pairs(_jobs(earlier, before), _jobs(planned, before), kind)
    return found


def _partitions(run: Run, selection: Selection) -> frozenset[str]:
    materialize, record = run.settings.materialize, record_of(run.workspace, run.settings)
    partitioning = Partitioning(run.root, selection.shards, run.shards, materialize)
    is_local = Output.of(run.workspace, materialize).url is None
    if not is_local or record is None or record.key.inputs != digest(partitioning.inputs):
        return frozenset()
    return frozenset(job.key.fingerprint for job in partitioning.jobs())


def _jobs(run: Run, shards: Container[str]) -> dict[tuple[type, str], Any]:
    """Return the jobs of some shards that make documents, scores and vectors, by their class and shard."""
    jobs = [job for stage in ("ingest", "score", "embed", "score_embed") for job, _ in run.found[stage]]
    single = [one for job in jobs for one in ((job.score, job.embed) if isinstance(job, ScoreEmbedJob) else (job,))]
    return {(type(job), job.name): job for job in single if job.name in shards}


def _in_pairs(
    old: Mapping[tuple[type, str], Any], new: Mapping[tuple[type, str], Any], kind: type, *arguments: object
) -> None:
    write: Callable[..., None] = rewrite_documents if kind is IngestJob else rewrite_rows
    pairs = [(old[name], job) for name, job in new.items() if name[0] is kind and name in old]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        done = pool.map(lambda pair: write(*pair, *arguments), pairs)
        for _ in track_by_size(f"shards, {kind.__name__}", done, len(pairs), lambda _: 1):
            pass


def standing_exports(workspace: Workspace, settings: PipelineSettings) -> list[ExportSettings]:
    """Return the exports in a workspace that are not the recipe's and can be written again.

    One of tokens can if its tokenizer is still to be had.
    """
    found, own = [], {one.folder for one in settings.materialize.export}
    for name, details in _exports(workspace).items():
        with suppress(ValidationError, FinewebMaskError):
            export = ExportSettings(
                **{**details["settings"], "name": name},
                tokenizer=details["tokenizer"] if "/" in details.get("tokenizer", "") else None,
            )
            check_format(export, name)
            found += [] if name in own else [export]
    return found


def _exports(workspace: Workspace) -> dict[str, dict[str, Any]]:
    """Return what the exports in a workspace record, by their names."""
    found = {path.parent.name: read_manifest(path) for path in workspace.files(f"{EXPORTS}/*/{PROVENANCE}")}
    return {name: one.details for name, one in found.items() if one is not None and one.key.stage == EXPORT}


def finish(workspace: Workspace, settings: PipelineSettings) -> tuple[Receipt, str]:
    """Delete what else holds a removed text, and write the receipt, which is returned with its path in the workspace.

    Raises
    ------
    WorkspaceError
        If a run uses the workspace, or a document came back.
    """
    with workspace.idle():
        removals, record = Removals.read(workspace), record_of(workspace, settings)
        pending = removals.pending or {}
        deleted = _delete(workspace, settings, removals.unwanted, "" if record is None else record.content)
        draft = Receipt.model_validate(pending["record"])
        before = {path: one for path, (one, _) in draft.files.items() if one is not None}
        files = {} if record is None else {name: one.sha256 for name, one in record.files.items()}
        after = hashes(workspace, _files_of(workspace, {_shard_of(path) for path in before}))
        receipt = draft.model_copy(
            update={
                "files": compared(before, after),
                "dataset": compared(pending["dataset"], files, all_of_them=False),
                "dataset_files": len(files),
                "rows": {**draft.rows, "after": 0 if record is None else int(record.details["rows"])},
                "deleted": deleted,
                "ended": now(),
            }
        )
        receipt.write(workspace.root / pending["receipt"])
        removals._replace(pending=None).write(workspace)
    return receipt, str(pending["receipt"])


def _delete(workspace: Workspace, settings: PipelineSettings, unwanted: Unwanted, dataset: str) -> list[str]:
    """Delete what may hold a removed text, but the dataset and what was rewritten; return the folders to make again."""
    finished = inspect_recipe(workspace, settings)
    reached = {job.beside("dropped"): job for job, _ in finished.found["ingest"] if isinstance(job, IngestJob)}
    documents = {workspace.relative(job.output) for job in reached.values()}
    found = search(workspace, unwanted)
    if back := sorted(documents & set(found.rows)):
        raise WorkspaceError(f"{back[0]} holds removed documents: please report this bug")
    for name in found.dropped:
        if (job := reached.get(workspace.root / name)) is not None:
            with local_copies():
                rewrite_dropped(workspace, name, job, unwanted)
    remove_of_shards(workspace, finished, {_shard_of(path) for path in (*found.rows, *found.dropped)})
    exports = _exports(workspace)
    stale = [f"{EXPORTS}/{name}" for name, details in exports.items() if details["dataset"] != dataset]
    deleted = [folder for folder in (*PAGES, *stale) if _delete_folder(workspace, folder)]
    for path in (workspace.root / EXPORTS).glob(".*"):  # of exports that were killed
        shutil.rmtree(path, ignore_errors=True)
    for name in CACHED:
        shutil.rmtree(workspace.cache / name, ignore_errors=True)
    parts = Parts.of(workspace, settings.materialize, "")
    if parts.output.url is None:
        shutil.rmtree(parts.folder, ignore_errors=True)
    remove_spilled(workspace, settings.materialize)
    return deleted


def _delete_folder(workspace: Workspace, folder: str) -> bool:
    """Delete a folder with all that is in it; return whether there was something."""
    files = workspace.sizes(folder, suffix="")
    for path in files:
        remove_file(workspace.root / path)
    shutil.rmtree(workspace.root / folder, ignore_errors=True)
    return bool(files)
