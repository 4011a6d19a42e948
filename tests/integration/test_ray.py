"""The sample on a Ray cluster of two nodes of this machine, in a bucket: the same bytes, whoever is killed."""

import http.server
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.cluster.cluster import RETRIES, LostJobError, RayCluster
from fineweb_mask.flows.display.progress import Screen, StageProgress, screen
from fineweb_mask.models.runtime.stopping import StoppedError
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks.ingest import IngestJob
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.conftest import Bucket
from tests.integration.conftest import SECONDS, built, sample_command, until, with_server
from tests.s3 import SeaweedServer, environment
from tests.tasks.jobs import OnGpuJob, ingest_job
from tests.tasks.source_files import discover

ROOT = Path(__file__).resolve().parents[2]
ATTEMPTS = 3
"""To start a node: Ray waits 30 s for it, whatever else the machine does."""

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own


class Nodes(NamedTuple):
    """A cluster, and what its processes said to the address of Prefect's server that they were given."""

    cluster: Any  # ray.cluster_utils.Cluster
    calls: list[str]

    def add(self, **resources: Any) -> Any:
        """Start a node."""
        return self.cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20, **resources)

    def remove(self, node: Any) -> None:
        """Kill a node."""
        self.cluster.remove_node(node, allow_graceful=False)


def begin_cluster(calls: list[str]) -> Nodes:
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}
    for attempt in range(ATTEMPTS):
        try:
            nodes = Nodes(Cluster(initialize_head=True, head_node_args=head), calls)
            nodes.add(resources={"b": 1})
        except Exception:
            if attempt == ATTEMPTS - 1:
                raise
        else:
            return nodes
    raise AssertionError


@pytest.fixture(scope="session")
def nodes(seaweed_server: SeaweedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes, whose environment has what they need of the bucket, and the address of a server that only counts."""
    calls: list[str] = []

    class Counting(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            calls.append(self.path)
            self.send_error(500)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *arguments: object) -> None:
            pass

    counting = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Counting)
    threading.Thread(target=counting.serve_forever, daemon=True).start()
    own = {
        **environment(seaweed_server.url),
        "PREFECT_API_URL": f"http://127.0.0.1:{counting.server_port}/api",
        "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("node-cache")),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # what others on this machine use is not ours
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "3",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        started = begin_cluster(calls)
    yield started
    started.cluster.shutdown()
    counting.shutdown()
    counting.server_close()


@pytest.fixture
def address(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the cluster, which is in the environment, too."""
    monkeypatch.setenv("RAY_ADDRESS", nodes.cluster.address)
    return str(nodes.cluster.address)


@pytest.fixture
def engine(address: str) -> tuple[str, ...]:
    """The settings of a run on the cluster."""
    return ("engine.kind=ray",)


@pytest.fixture
def corpus(seaweed_bucket: Bucket, sample_corpus: Path) -> str:
    """The URL of the sample corpus."""
    for path in (sample_corpus / "corpus").glob("*.parquet"):
        seaweed_bucket.write(f"corpus/{path.name}", path.read_bytes())
    return f"{seaweed_bucket.url}/corpus"


def data_of(bucket: Bucket, prefix: str) -> list[bytes]:
    """Return the dataset's Parquet files."""
    return [bucket.read(name) for name in sorted(bucket.names(prefix)) if name.endswith(".parquet")]


def local_data(workspace: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((workspace / "dataset" / "data").rglob("*.parquet"))]


class DoneJobs(Screen):
    """Calls a function when a job of a stage has ended."""

    def __init__(self, stage: str, then: Callable[[], None]) -> None:
        super().__init__()
        self._stage, self._then = stage, then

    def show(self, stage: StageProgress) -> None:
        if stage.stage == self._stage and stage.done:
            self._then()


@pytest.mark.long
def test_a_cluster_writes_the_same_dataset_though_a_node_dies(
    nodes, engine, seaweed_bucket, corpus, run_sample, finished
):
    """The second node dies when the first vectors are there; another joins afterwards."""
    [second] = nodes.cluster.worker_nodes
    dying: list[Any] = [second]

    def kill() -> None:
        if dying:
            nodes.remove(dying.pop())

    token = screen.set(DoneJobs("embed", kill))
    try:
        summary = run_sample(f"{seaweed_bucket.url}/ws", f"source.path={corpus}", *engine, until="materialize")
    finally:
        screen.reset(token)
        nodes.add(resources={"b": 1})
    assert not dying
    assert summary.status == "done"
    assert data_of(seaweed_bucket, "ws/dataset/data") == local_data(finished) != []
    assert built(summary)["embed"] == len(list((finished / "embeddings").glob("*.parquet")))
    assert nodes.calls == []


@pytest.mark.long
def test_interrupted_a_run_ends_in_seconds_and_leaves_nothing_on_the_cluster(
    nodes, engine, small_sample, server, tmp_path
):
    command = sample_command(tmp_path / "workspace", (*small_sample, *engine))
    own = with_server() | {"PYTHONFAULTHANDLER": "1"}
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=own, stdout=output, stderr=subprocess.STDOUT)
    until(lambda: process.poll() is not None or running_jobs(), "for a job", 0.05)
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    try:
        assert process.wait(timeout=60) != 0
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # the traceback of every thread follows the output
        process.wait()
        raise AssertionError((tmp_path / "output").read_text()) from None
    assert time.monotonic() - started < 15, "it is 5 s on a machine that does nothing else"
    assert "interrupted; run the same command again to resume" in (tmp_path / "output").read_text()
    assert running_jobs() == []


def running_jobs() -> list[str]:
    """Return the command lines of processes that run a job."""
    lines = [process.info["cmdline"] or [""] for process in psutil.process_iter(["cmdline"])]
    of_ray = [line[0] for line in lines if line[0].startswith("ray::")]
    return [name for name in of_ray if not name.startswith("ray::IDLE") and not name.endswith("Agent")]


@pytest.mark.long
def test_a_job_that_is_started_while_the_run_ends_starts_no_other_ray(address, jobs):
    """It would be a second cluster, and a run that never ends."""
    import ray

    halfway, closed = threading.Event(), threading.Event()

    class SlowJob(IngestJob):
        def model_dump_json(self, **options: Any) -> str:
            halfway.set()
            closed.wait(SECONDS)
            return super().model_dump_json(**options)

    cluster = RayCluster()
    with ThreadPoolExecutor() as threads:
        try:
            answer = threads.submit(cluster.submit, SlowJob(**dict(jobs[0])))
            assert halfway.wait(SECONDS)
        finally:
            cluster.close()
            closed.set()
        assert isinstance(answer.exception(timeout=SECONDS), StoppedError)
    assert not ray.is_initialized()


def end_a_process(name: str) -> None:
    """Kill a process that runs a job, as soon as there is one."""

    def found() -> list[psutil.Process]:
        return [one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [""])[0].startswith(name)]

    until(found, f"for {name}", 0.05)[0].kill()


def processes_with_a_gpu(cluster: RayCluster) -> list[int]:
    """Return the ids of the processes that hold a GPU, on whichever machine they are."""
    import ray

    ids: list[int] = ray.get([worker.__ray_call__.remote(lambda _: os.getpid()) for worker in cluster.workers])
    return ids


@pytest.fixture
def jobs(sample_corpus: Path, tmp_path: Path) -> list[IngestJob]:
    """A job for each of four small shards, in a workspace of its own."""
    (tmp_path / "corpus").mkdir()
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "run.json").write_text("{}")
    for path in (sample_corpus / "corpus").glob("*.parquet"):
        pq.write_table(pq.read_table(path).slice(0, 20), tmp_path / "corpus" / path.name)
    source = SourceSettings(path=str(tmp_path / "corpus"))
    workspace = Workspace(tmp_path / "workspace")
    return [ingest_job(workspace, shard, source, IngestSettings()) for shard in discover(source)]


def on_gpu(job: IngestJob) -> OnGpuJob:
    """Return a job that runs in a process with a GPU, whether its output is there or not."""
    return OnGpuJob(**dict(job) | {"force": True})


@pytest.mark.long
def test_ends_of_processes_are_survived_and_one_with_a_gpu_stays(nodes, address, jobs, tmp_path):
    """A bad shard stays one, of its own class. The GPU is one in Ray's books only."""
    import ray

    cluster, joined = RayCluster(gpus=1), None
    try:
        first = [cluster.submit(job) for job in jobs]
        end_a_process("ray::ingest")
        documents = [future.result(timeout=SECONDS) for future in first]
        assert [file.name for file in documents] == [job.name for job in jobs]
        lost = jobs[0].shard.model_copy(update={"url": f"file://{tmp_path}/lost.parquet", "name": "lost"})
        with pytest.raises(BadShardError, match="lost"):
            cluster.submit(jobs[0].model_copy(update={"shard": lost, "force": True})).result(timeout=SECONDS)
        again = [cluster.submit(jobs[number % len(jobs)]) for number in range(200)]
        assert all(future.result(timeout=SECONDS).rows for future in again)
        gcs = ray._private.worker.global_worker.gcs_client
        assert len(gcs.internal_kv_keys(b"RemoteFunction:", b"fun")) == 1  # exported once, not with every job

        waiting = [cluster.submit(on_gpu(job)) for job in jobs[:2]]
        time.sleep(1)
        assert not any(future.done() for future in waiting)  # no node has a GPU
        joined = nodes.add(num_gpus=1)
        assert [future.result(timeout=SECONDS).rows for future in waiting] == [file.rows for file in documents[:2]]
        process = processes_with_a_gpu(cluster)
        cluster.submit(on_gpu(jobs[2])).result(timeout=SECONDS)
        assert processes_with_a_gpu(cluster) == process != []  # its models stay loaded
        os.kill(process[0], signal.SIGKILL)
        assert cluster.submit(on_gpu(jobs[3])).result(timeout=SECONDS).rows == documents[3].rows
        assert processes_with_a_gpu(cluster) != process
    finally:
        cluster.close()
        if joined is not None:
            nodes.remove(joined)


@pytest.mark.long
def test_processes_with_a_gpu_that_never_start_end_the_job_with_a_reason(address, jobs):
    import ray

    class NeverStarts:
        """A process with a GPU that ends before it can be asked for anything; not imported, so it ends soon."""

        def __init__(self) -> None:
            os._exit(1)

        def work_on(self, *_: str) -> str:
            return ""

    cluster = RayCluster(gpus=1)
    cluster.worker_type = ray.remote(num_cpus=1, max_restarts=RETRIES)(NeverStarts)
    try:
        with pytest.raises(LostJobError, match=f"ingest {jobs[0].name}: its process on the Ray cluster ended: "):
            cluster.submit(on_gpu(jobs[0])).result(timeout=SECONDS)
    finally:
        cluster.close()
