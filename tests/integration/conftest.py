"""One server and worker for the session, as `make serve` starts them, and one finished workspace.

Tests copy the workspace before they damage it.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fasteners import InterProcessLock
from playwright.sync_api import Browser, sync_playwright
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from fineweb_mask.flows.compare import CompareSummary, compare
from fineweb_mask.flows.curate import curate
from fineweb_mask.flows.display.prefect_ui import artifact_key
from fineweb_mask.flows.display.progress import Screen, StageProgress, screen
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.summary import RunSummary, StoppedSummary
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.s3 import free_port

ROOT = Path(__file__).resolve().parents[2]
SMALL_ENCODER = (  # enough to tell topics apart, and fitted in a second; what is looked at is less, too
    "embedding.static_dimensions=256",
)

RunSample = Callable[..., RunSummary]


class Service(NamedTuple):
    """A `make serve`."""

    url: str
    state: Path
    home: Path  # where the deployments' relative paths lie

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of its commands."""
        return os.environ | {"PREFECT_API_URL": f"{self.url}/api", "FINEWEB_MASK_HOME": str(self.home)}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m ...` of the checkout against the server."""
        command = [sys.executable, "-m", *arguments]
        return subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)

    @contextmanager
    def running(self) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """Run it while the block does; yield its process, and what it says once it is ready."""
        command = [sys.executable, "-m", "deployments.serve", f"--port={self.url.rpartition(':')[2]}"]
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        command += ["--state", str(self.state)]
        with subprocess.Popen(command, cwd=ROOT, env=self.environment, **options) as process:
            lines = [process.stdout.readline() for _ in range(4)]
            assert lines[-1], process.stderr.read()
            try:
                yield process, "".join(lines)
            finally:
                process.terminate()
                process.wait(60)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> httpx.Response:
        """Ask the server's API; again where its database is locked, as Prefect's client does."""
        for seconds in (1, 2, 4, 8, 0):
            response = httpx.request(method, f"{self.url}/api/{path}", json=body, timeout=60)
            if response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                break
            time.sleep(seconds)
        return response.raise_for_status()

    def read(self, path: str, **body: Any) -> Any:
        """Read from the server's API, by POST where there is something to say."""
        return self.ask("POST" if body else "GET", path, body or None).json()

    def artifacts(self, flow_run: str) -> dict[str, dict[str, Any]]:
        """Return what a flow run shows, by keys without their end, which names the workspace."""
        end = artifact_key("", self.read(f"flow_runs/{flow_run}")["parameters"]["settings"]["workspace"])
        found = self.read("artifacts/filter", artifacts={"flow_run_id": {"any_": [flow_run]}})
        assert all(artifact["key"].endswith(f"-{end}") for artifact in found)
        return {artifact["key"].removesuffix(f"-{end}"): artifact for artifact in found}

    def run(self, deployment: str, *arguments: str) -> dict[str, Any]:
        """Run a deployment to its end, as a user does; return the flow run."""
        done = self.command("prefect", "deployment", "run", deployment, "--watch", "--watch-timeout=300", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        found = self.read("flow_runs/filter", sort="START_TIME_DESC", limit=1)
        return found[0]


def built(summary: RunSummary | StoppedSummary) -> dict[str, int]:
    """Return how many files a run built and did not find, of the stages that built any."""
    return {stage.stage: stage.files - stage.cached for stage in summary.stages if stage.files > stage.cached}


def sample_command(workspace: Path | str, settings: Iterable[str], *arguments: str) -> list[str]:
    """Return the command that runs the sample's recipe, to be started in the checkout."""
    command = [sys.executable, "-m", "fineweb_mask.flows.cli", "run", "deployments/recipes/sample.yaml"]
    return [*command, "--workspace", str(workspace), *(f"--set={one}" for one in settings), *arguments]


def with_server() -> dict[str, str]:
    """Return the environment of a command that uses the server of this session."""
    return os.environ | {"PREFECT_API_URL": str(PREFECT_API_URL.value())}


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], object]], Path]:
    """Return the function that has one of the processes of the tests make a folder, which all of them then read."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own

    def folder(name: str, make: Callable[[Path], object]) -> Path:
        target = shared / name
        with InterProcessLock(f"{target}.lock"):
            if not target.exists():
                unfinished = tmp_path_factory.mktemp(name)
                make(unfinished)
                unfinished.rename(target)
        return target

    return folder


def write_sample(folder: Path) -> None:
    """Write a third of the sample, its labels and what is known about it: what is looked at is true of it, too."""
    (folder / "corpus").mkdir()
    for path in (ROOT / "data_samples" / "corpus").glob("*.parquet"):
        pq.write_table(pq.read_table(path).slice(0, 500), folder / "corpus" / path.name)
    labels = pq.read_table(ROOT / "data_samples" / "labels.parquet")
    pq.write_table(labels.take(list(range(0, labels.num_rows, 3))), folder / "labels.parquet")
    (folder / "truth.parquet").symlink_to(ROOT / "data_samples" / "truth.parquet")


@pytest.fixture(scope="session")
def sample_corpus(made_once: Callable[..., Path]) -> Path:
    """What `write_sample` writes."""
    return made_once("sample", write_sample)


@pytest.fixture(scope="session")
def service(sample_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """What `make serve` starts, in folders of its own."""
    home = tmp_path_factory.mktemp("home")
    (home / "data_samples").symlink_to(sample_corpus)
    service = Service(f"http://127.0.0.1:{free_port()}", tmp_path_factory.mktemp("serve"), home)
    with service.running():
        yield service
    with pytest.raises(httpx.ConnectError):
        httpx.get(service.url)


@pytest.fixture(scope="session")
def server(service: Service) -> Iterator[None]:
    """Have flows of this process use the server."""
    with temporary_settings({PREFECT_API_URL: f"{service.url}/api", PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        yield
        APILogWorker.instance().drain()
        EventsWorker.drain_all()


@pytest.fixture(scope="session")
def sample_run(service: Service) -> dict[str, Any]:
    """The flow run of the deployment `sample` in an empty workspace."""
    return service.run("curate/sample")


@pytest.fixture(scope="session")
def small_encoder() -> tuple[str, ...]:
    """The settings of the encoder that the finished workspace was made with."""
    return SMALL_ENCODER


@pytest.fixture(scope="session")
def small_sample(sample_corpus: Path) -> tuple[str, ...]:
    """The settings by which the recipe of the sample becomes that of the finished workspace."""
    return (
        f"source.path={sample_corpus / 'corpus'}",
        f"quality.scorers.0.labels.path={sample_corpus / 'labels.parquet'}",
        *SMALL_ENCODER,
    )


@pytest.fixture(scope="session")
def run_sample(server: None, small_sample: tuple[str, ...]) -> RunSample:
    """Run the sample recipe on the sample corpus with a small encoder."""

    def run(
        workspace: Path,
        *overrides: str,
        refit: list[str] | None = None,
        until: str | None = None,
    ) -> RunSummary | StoppedSummary:
        settings = load_recipe(
            ROOT / "deployments" / "recipes" / "sample.yaml",
            [*small_sample, *overrides],
            str(workspace),
        )
        return curate(settings, refit, until=until)

    return run


@pytest.fixture(scope="session")
def finished(run_sample: RunSample, made_once: Callable[..., Path]) -> Path:
    """A workspace in which the sample was run; to be read only."""
    return made_once("finished", run_sample)


@pytest.fixture
def workspace(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished workspace: it may be moved, for nothing in it holds its path."""
    return Path(shutil.copytree(finished, tmp_path / "copy"))


class Contested(NamedTuple):
    """A copy of the finished workspace, in which selectors and then weights of quality were compared."""

    workspace: Path
    compared: CompareSummary
    swept: CompareSummary
    heard: dict[tuple[str, str], list[tuple[float, tuple[Step, ...]]]]  # by stage and job, how far it was


class _Hearing(Screen):
    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[tuple[str, str], list[tuple[float, tuple[Step, ...]]]] = {}

    def show(self, stage: StageProgress) -> None:
        for job, steps in stage.steps.items():
            self.heard.setdefault((stage.stage, job), []).append((stage.shares[job], steps))


@pytest.fixture(scope="session")
def contest(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Contested:
    """Compare three selectors, then five values of lamb, with every step told; to be read only."""
    workspace = Path(shutil.copytree(finished, tmp_path_factory.mktemp("contest") / "workspace"))
    settings = LastRun.load(Workspace(workspace)).settings.model_copy(update={"workspace": str(workspace)})
    hearing = _Hearing()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fineweb_mask.models.runtime.progress.SECONDS", 0.0)
        token = screen.set(hearing)
        compared = compare(settings, ["mean_field", "random", "greedy"], label_column="dump")
        swept = compare(settings, ["random", "semdedup"], "0:1:0.25")
        screen.reset(token)
    return Contested(workspace, compared, swept, hearing.heard)


ATTACKS = (
    "<script>alert('x')</script>",
    "<img src=x onerror=alert(1)>",
    "[l](javascript:alert(1)) ![i](http://evil.example/x.png)",
    "\x1b[31mred\x07\x00",
    "\u202egnp.exe\u2066",
    "🎉👩\u200d🚀",
    "x" * 3_000,
    "$\\frac{1}{0}$ a|b `c` {{ 7 * 7 }}",
)


SENTENCE = (
    "It is said of page {} that the tide carries small boats past the reef to the sea, where the lights are faint."
)


def write_attacks(path: Path) -> None:
    """Write documents whose text, url and dump are attacks."""
    rows = [
        {
            "text": f"{attack} {SENTENCE.format(index)}",
            "url": f"https://{attack.replace('/', '')}/{index}",
            "dump": attack,
        }
        for index, attack in enumerate(ATTACKS * 8)
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)


class HostileRun(NamedTuple):
    """A run over a good shard, one of attacks and a broken one whose name is one."""

    workspace: Path
    flow_run: str
    shard: str


@pytest.fixture(scope="session")
def hostile_run(
    service: Service, run_sample: RunSample, sample_corpus: Path, tmp_path_factory: pytest.TempPathFactory
) -> HostileRun:
    """Run it twice: the shard is set aside, then it ends the run."""
    folder = tmp_path_factory.mktemp("hostile")
    shard = "a|b <img src=x onerror=alert(1)> [l](javascript:alert(1)) **c**"
    corpus = folder / "corpus"
    corpus.mkdir()
    good = "CC-MAIN-2024-30_00000.parquet"
    (corpus / good).symlink_to(sample_corpus / "corpus" / good)
    (corpus / f"{shard}.parquet").write_bytes(b"not parquet")
    write_attacks(corpus / "attacks.parquet")
    overrides = (f"source.path={corpus}", "embedding.static_dimensions=64", "materialize.layout=flat")
    assert run_sample(folder / "workspace", *overrides).status == "quarantined"
    flow_run = service.read("flow_runs/filter", sort="START_TIME_DESC", limit=1)[0]["id"]
    with pytest.raises(BadShardError):
        run_sample(folder / "workspace", *overrides, "ingest.on_bad_shard=fail")
    return HostileRun(folder / "workspace", flow_run, shard)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Return the system's Chromium; module-wide, for its event loop is in the way of Prefect's."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking", "--disable-component-update"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def outcome() -> Callable[[Path], dict[str, bytes]]:
    """Return the function that reads what a workspace holds of scores, vectors, masks and dataset, byte by byte."""

    def read(workspace: Path) -> dict[str, bytes]:
        folders = ("masks", "embeddings", "scores")
        files = [path for folder in folders for path in (workspace / folder).glob("*.parquet")]
        dataset = (workspace / "dataset" / "data").rglob("*.parquet")
        return {path.relative_to(workspace).as_posix(): path.read_bytes() for path in [*files, *dataset]}

    return read
