"""One server for the session, with a worker where one is needed, as `make serve` starts them; a finished workspace.

Tests copy the workspace before they damage it.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Browser, sync_playwright
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

from deployments.serve import running_server, running_worker
from fineweb_mask.flows.compare import CompareSummary
from fineweb_mask.flows.deployed import compare, curate
from fineweb_mask.flows.display.prefect_ui import artifact_key
from fineweb_mask.flows.display.progress import Screen, StageProgress, screen
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.summary import RunSummary, StoppedSummary
from fineweb_mask.models.runtime.progress import Step
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.s3 import free_port

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[2]
SMALL_ENCODER = (  # enough to tell topics apart, and fitted in a second; what is looked at is less, too
    "embedding.static_dimensions=256",
)
DEPLOYED = {"embedding.static_dimensions": 64}
"""What runs of deployments do not take from their recipe."""

RunSample = Callable[..., RunSummary]
SECONDS = 300
"""Time in which a thing that is waited for has happened, whatever else the machine does."""


def until(condition: Callable[[], T], what: str, every: float = 0.5) -> T:
    """Wait for something, looked at every so many seconds, and return what it is."""
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"still waiting {what}"
        time.sleep(every)
    return found


class Service(NamedTuple):
    """A Prefect server of this session."""

    url: str
    state: Path
    home: Path  # where the deployments' relative paths lie

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of its commands."""
        return os.environ | {"PREFECT_API_URL": f"{self.url}/api", "FINEWEB_MASK_HOME": str(self.home)}

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run `prefect` in the checkout against the server."""
        command = [sys.executable, "-m", "prefect", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

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
        parameters = self.read(f"flow_runs/{flow_run}")["parameters"]
        given = parameters.get("overrides") or {}
        end = artifact_key("", given.get("workspace") or parameters["settings"]["workspace"])
        found = self.read("artifacts/filter", artifacts={"flow_run_id": {"any_": [flow_run]}})
        assert all(artifact["key"].endswith(f"-{end}") for artifact in found)
        return {artifact["key"].removesuffix(f"-{end}"): artifact for artifact in found}

    def state_of(self, flow_run: str) -> str:
        """Return the name of a flow run's state."""
        name: str = self.read(f"flow_runs/{flow_run}")["state"]["name"]
        return name

    def start(self, deployment: str, **parameters: Any) -> str:
        """Start a deployment, as the UI does; return the flow run's id."""
        place = self.read(f"deployments/name/{deployment}")["id"]
        started: str = self.ask("POST", f"deployments/{place}/create_flow_run", {"parameters": parameters}).json()["id"]
        return started

    def run(self, deployment: str, **parameters: Any) -> dict[str, Any]:
        """Run a deployment to its end; return the flow run."""
        started = self.start(deployment, **parameters)
        until(lambda: self.state_of(started) in {"Completed", "Failed", "Crashed"}, f"for {deployment} to end")
        found: dict[str, Any] = self.read(f"flow_runs/{started}")
        assert found["state"]["type"] == "COMPLETED", found["state"]
        return found


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
def prefect_server(sample_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The server of `make serve`, in folders of its own."""
    home, state, port = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("serve"), free_port()
    (home / "data_samples").symlink_to(sample_corpus)
    with running_server(state, port):
        yield Service(f"http://127.0.0.1:{port}", state, home)


@pytest.fixture(scope="session")
def service(prefect_server: Service) -> Iterator[Service]:
    """The server with a worker and all deployments, as `make serve` starts them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINEWEB_MASK_HOME", str(prefect_server.home))
        with running_worker(prefect_server.state, int(prefect_server.url.rpartition(":")[2])):
            yield prefect_server


@pytest.fixture(scope="session")
def server(prefect_server: Service) -> Iterator[None]:
    """Have flows of this process use the server."""
    used = {PREFECT_API_URL: f"{prefect_server.url}/api", PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with temporary_settings(used):
        yield
        APILogWorker.instance().drain()
        EventsWorker.drain_all()


@pytest.fixture(scope="session")
def sample_run(service: Service) -> dict[str, Any]:
    """The flow run of the deployment `sample` in an empty workspace, started as a user does."""
    given = json.dumps(DEPLOYED)
    service.command("deployment", "run", "curate/sample", "--watch", "--watch-timeout=300", "-p", f"overrides={given}")
    [found] = service.read("flow_runs/filter", sort="START_TIME_DESC", limit=1)
    return found


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
    prefect_server: Service, run_sample: RunSample, sample_corpus: Path, tmp_path_factory: pytest.TempPathFactory
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
    flow_run = prefect_server.read("flow_runs/filter", sort="START_TIME_DESC", limit=1)[0]["id"]
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
