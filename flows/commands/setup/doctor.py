"""`fineweb-mask doctor`: say what this machine has and lacks, and whether stores and servers answer."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fineweb_mask.flows.display.terminal import SafeConsole, print_line, size_text
from fineweb_mask.models.errors import FinewebMaskError
from fineweb_mask.models.urls import is_url, redacted

GIB = 2**30
SECONDS = 5.0  # that a server has to answer
NEEDED = ("prefect", "torch", "sentence-transformers", "pyarrow", "duckdb")
OPTIONAL = {  # package: what it is for, how it is installed
    "rensa": ("ingest.near_dedup: minhash", "the extra 'near-dedup'"),
    "datatrove": ("ingest.filters, tokens", "the extra 'filters'"),
    "trafilatura": ("crawls", "the extra 'warc'"),
    "ray": ("engine.kind: ray", "the extra 'ray'"),
    "embedding-atlas": ("explore", "`pip install --no-deps embedding-atlas==0.22.0`"),
    "umap-learn": ("report.map: umap", "the extra 'maps'"),
}
MEMORY_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


class Found(NamedTuple):
    """A line of the answer."""

    what: str
    text: str
    failed: bool = False


def doctor(
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PATH_OR_URL]...", help="Sources and workspaces to reach, also URLs."),
    ] = None,
) -> None:
    """Say what this machine has, what is not installed, and whether the hub, the stores and Prefect answer.

    Exit code 1 if something that is needed or named is missing. Example: fineweb-mask doctor s3://bucket/web
    """
    console, failed = SafeConsole(highlight=False), False
    for found in (*_machine(), *_packages(), _hub(), _prefect(), *(_reached(path) for path in paths or [])):
        print_line(console, f"{found.what:<22} {found.text}", "bold red" if found.failed else None)
        failed = failed or found.failed
    if failed:
        raise typer.Exit(1)


def _machine() -> Iterator[Found]:
    from fineweb_mask.tasks.processes.workers import cores

    yield Found("fineweb-mask", f"{version('fineweb-mask')}, Python {platform.python_version()}, {platform.platform()}")
    yield Found("cores", str(cores()))
    yield Found("memory", _memory())
    for name, folder in (("disk, this folder", Path.cwd()), ("disk, temporary files", Path(tempfile.gettempdir()))):
        usage = shutil.disk_usage(folder)
        yield Found(name, f"{usage.free / GIB:,.1f} GiB free of {usage.total / GIB:,.1f} in {folder}")
    yield from _accelerators()


def _memory() -> str:
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    for path in map(Path, MEMORY_LIMITS):
        limit = path.read_text(encoding="ascii").strip() if path.is_file() else ""
        if limit.isdecimal() and int(limit) < total:
            return f"{int(limit) / GIB:,.1f} GiB, of this machine's {total / GIB:,.1f}, are allowed here"
    free = "" if sys.platform != "linux" else f", {page * os.sysconf('SC_AVPHYS_PAGES') / GIB:,.1f} unused"
    return f"{total / GIB:,.1f} GiB{free}"


def _accelerators() -> Iterator[Found]:
    import torch

    from fineweb_mask.models.forward.device import choose_devices, compute_dtype

    for device in choose_devices("auto"):
        dtype = str(compute_dtype("auto", device)).removeprefix("torch.")
        if device == "cpu":
            yield Found("GPU", f"none: transformers run on the CPU, in {dtype}")
        else:
            known = torch.cuda.get_device_properties(device)
            yield Found(device, f"{known.name}, {known.total_memory / GIB:,.0f} GiB; transformers run in {dtype}")


def _packages() -> Iterator[Found]:
    found = {name: _version(name) for name in NEEDED}
    yield Found("packages", ", ".join(f"{name} {one}" for name, one in found.items() if one))
    for name in (name for name, one in found.items() if not one):
        yield Found(name, "is not installed: install fineweb-mask again", failed=True)
    for name, (purpose, remedy) in OPTIONAL.items():
        installed = _version(name)
        yield Found(name, f"{installed}, for {purpose}" if installed else f"not installed; for {purpose}: {remedy}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _hub() -> Found:
    import httpx
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        return Found("Hugging Face hub", "not asked: HF_HUB_OFFLINE is set, so models come from folders and the cache")
    token = "with a token" if get_token() else "without a token (HF_TOKEN, or `hf auth login`)"
    try:
        answer = httpx.get(f"{constants.ENDPOINT}/api/models?limit=1", timeout=SECONDS, follow_redirects=True)
        answer.raise_for_status()
    except httpx.HTTPError as error:
        missing = "models come from folders and the cache; `hf download NAME` where it answers"
        return Found("Hugging Face hub", f"{constants.ENDPOINT} does not answer ({error}): {missing}")
    return Found("Hugging Face hub", f"{constants.ENDPOINT} answers, {token}")


def _prefect() -> Found:
    import httpx
    from prefect.settings import get_current_settings

    api = get_current_settings().api
    if not api.url:
        return Found("Prefect", "no PREFECT_API_URL: each run starts a temporary server")
    try:
        httpx.get(f"{api.url}/health", timeout=SECONDS).raise_for_status()
    except httpx.HTTPError as error:
        remedy = "start it, or unset PREFECT_API_URL"
        return Found("Prefect", f"{redacted(api.url)} does not answer ({error}): {remedy}", failed=True)
    return Found("Prefect", f"{redacted(api.url)} answers")


def _reached(path: str) -> Found:
    """Look at a source, or at a workspace."""
    from fineweb_mask.models.settings.source import SourceSettings
    from fineweb_mask.tasks.source.discovery import discover
    from fineweb_mask.tasks.storage.remote.retries import brief_retries
    from fineweb_mask.tasks.workspace.workspace import Workspace

    def as_workspace() -> str:
        workspace = Workspace(path)
        workspace.check_reachable()
        workspace.check_is_ours()
        return "a workspace can be here" if is_url(path) or Path(path).is_dir() else "a new workspace can be here"

    def as_source() -> str:
        shards = discover(SourceSettings(path=path))
        files = f"{len(shards):,} source file{'' if len(shards) == 1 else 's'}"
        return f"{files}, {size_text(sum(shard.bytes for shard in shards))}"

    problems: list[str] = []
    for look in (as_source, as_workspace):
        try:
            with brief_retries():
                return Found(redacted(path), "; ".join([*problems, look()]))
        except FinewebMaskError as error:
            problems.append(str(error))
    return Found(redacted(path), "; ".join(dict.fromkeys(problems)), failed=True)
