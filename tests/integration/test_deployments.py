"""`make serve`, its deployments, and the artifacts and events of a run, on a real server with a real worker."""

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pyarrow.parquet as pq
import pytest
from prefect import flow
from prefect.flows import load_flow_from_entrypoint

from fineweb_mask.flows.display.prefect_ui import or_warn
from fineweb_mask.flows.processes.environment import server_lost
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.models.settings import PipelineSettings
from tests.integration.conftest import DEPLOYED, SECONDS, until
from tests.s3 import free_port

pytestmark = pytest.mark.long  # a server, a worker or a browser, or whole runs, some of which are killed

ROOT = Path(__file__).resolve().parents[2]
STAGES = ["ingest", "dedup", "fit", "score", "embed", "select", "materialize", "report"]
PAGES = ["compare/compare", "tune/tune"]
DEPLOYMENTS = {"curate/sample", "curate/fineweb", "train-quality/train-quality", "push/push", *PAGES}


def task_runs_of(service, flow_run) -> tuple[list[str], dict[str, set[str]]]:
    """Return the names of a run's task runs, and for each those that the UI draws an arrow from to it."""
    runs = service.read("task_runs/filter", flow_runs={"id": {"any_": [flow_run["id"]]}})
    names = {run["id"]: run["name"] for run in runs}
    arrows = {run["name"]: {names[one["id"]] for one in run["task_inputs"].get("wait_for", [])} for run in runs}
    return list(names.values()), arrows


def test_deployed_sample_runs_and_is_found_finished_the_second_time(service, sample_run):
    assert sample_run["state"]["type"] == "COMPLETED"
    parts = (service.home / "workspaces" / "sample" / "dataset" / "data").rglob("*.parquet")
    assert sum(pq.read_metadata(part).num_rows for part in parts) == 473

    names, arrows = task_runs_of(service, sample_run)
    [shard, *_] = [name.removeprefix("embed ") for name in names if name.startswith("embed ")]
    assert arrows[f"ingest {shard}"] == set()
    repeated = {"dedup corpus"}  # of a shard that has duplicates
    assert arrows[f"embed {shard}"] - repeated == {f"ingest {shard}", "fit_encoder encoder"}
    assert arrows[f"score {shard}"] - repeated == {
        f"ingest {shard}",
        "fit_classifier quality-fasttext",
        "fit_statistics quality-statistics",
    }
    [selecting] = [name for name in names if name.startswith("select ")]
    assert {f"score {shard}", f"embed {shard}", "dedup corpus"} <= arrows[selecting]
    assert selecting in arrows["report report"]

    again = service.run("curate/sample", overrides=DEPLOYED)
    assert task_runs_of(service, again)[1][f"embed {shard}"] == arrows[f"embed {shard}"]

    def cached():
        found = service.read("task_runs/filter", flow_runs={"id": {"any_": [again["id"]]}})
        return found if {run["state"]["name"] for run in found} == {"Cached"} else []

    shown = until(cached, "for the states of the tasks")  # events, which the server may read after that of the flow
    assert sum(run["name"].startswith("embed ") for run in shown) == 4
    assert service.artifacts(again["id"])["progress-score"]["data"] == 100.0
    assert "4 of 4 done, 4 cached" in service.artifacts(again["id"])["progress-score"]["description"]


def test_a_run_shows_its_progress_its_funnel_and_its_report(service, sample_run):
    shown = service.artifacts(sample_run["id"])
    assert shown.keys() == {f"progress-{stage}" for stage in STAGES} | {"funnel", "report"}
    assert {shown[f"progress-{stage}"]["data"] for stage in STAGES} == {100.0}
    assert "4 of 4 done" in shown["progress-score"]["description"]
    assert "1,892 documents" in shown["progress-score"]["description"]

    table = json.loads(shown["funnel"]["data"])
    totals = {row["stage"]: (row["documents in"], row["documents out"]) for row in table}
    assert totals["ingest"] == (2000, 1905)
    assert totals["select"][1] == totals["materialize"][1] == 473
    assert {row["cached"].partition(" ")[0] for row in table} == {"0"}

    report = shown["report"]["data"]
    assert len(report) < 800_000  # `--watch` takes no event of more than 1 MiB
    assert report.count("](data:image/png;base64,") == 1
    assert "Of the way from a random selection to the best possible" in report
    assert r"workspaces\/sample\/reports\/index\.html" in report


@pytest.mark.parametrize("place", ["curate/sample", "curate/fineweb", *PAGES])
def test_parameters_are_those_of_the_recipe(service, place):
    deployment = service.read(f"deployments/name/{place}")
    name = "fineweb" if place == "curate/fineweb" else "sample"
    recipe = load_recipe(ROOT / "deployments" / "recipes" / f"{name}.yaml")
    assert PipelineSettings.model_validate(deployment["parameters"]["settings"]) == recipe
    assert deployment["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert deployment["enforce_parameter_schema"]
    if place not in PAGES:
        assert deployment["global_concurrency_limit"]["limit"] == 1
        assert deployment["work_queue_name"] == {"sample": "default", "fineweb": "gpu"}[name]
        assert [schedule["active"] for schedule in deployment["schedules"]] == {"sample": [], "fineweb": [False]}[name]


def test_what_is_deployed_is_started_by_a_person_or_at_night(service):
    flows = {flow["id"]: flow["name"] for flow in service.read("flows/filter", limit=200)}
    found = {f"{flows[one['flow_id']]}/{one['name']}" for one in service.read("deployments/filter", limit=200)}
    assert found - {"curate/container"} == DEPLOYMENTS  # which another test deploys
    automations = service.read("automations/filter", limit=200)
    assert not [one for one in automations if any("deployment_id" in action for action in one["actions"])]


def run_here(service, deployment: str, monkeypatch, **given: Any) -> dict[str, Any]:
    """Run what is deployed in this process, with the parameters that the server has of it; return the flow run."""
    deployed = service.read(f"deployments/name/{deployment}")
    monkeypatch.chdir(service.home)
    load_flow_from_entrypoint(deployed["entrypoint"])(**deployed["parameters"] | given)
    [found] = service.read("flow_runs/filter", sort="START_TIME_DESC", limit=1)
    assert (found["flow_id"], found["state"]["type"]) == (deployed["flow_id"], "COMPLETED")
    return found


def test_the_deployed_push_lists_the_files_of_the_dataset(service, server, sample_run, monkeypatch):
    parameters = run_here(service, "push/push", monkeypatch)["parameters"]
    given = {"dataset": "workspaces/sample", "repository": "my-name/my-dataset", "dry_run": True}
    assert parameters | given == parameters


def test_the_deployed_comparison_uses_the_files_of_the_sample_run(service, server, sample_run, monkeypatch):
    given = {"variants": ["random"], "lambs": "0,0.5,1", "overrides": DEPLOYED}
    compared = run_here(service, "compare/compare", monkeypatch, **given)
    shown = service.artifacts(compared["id"])
    assert {"compare", "compare-table", "progress-scale", "progress-contend"} <= shown.keys()
    assert shown["progress-embed"]["description"].startswith("4 of 4 done, 4 cached")
    assert shown["compare"]["data"].count("](data:image/png;base64,") == 1
    assert (service.home / "workspaces" / "sample" / "compare" / "index.html").is_file()


def test_a_deployment_holds_no_path_of_a_machine(service):
    for name in DEPLOYMENTS:
        text = json.dumps(service.read(f"deployments/name/{name}"))
        assert "{{ $FINEWEB_MASK_HOME }}" in text
        assert str(ROOT) not in text
        assert str(Path.home()) + "/" not in text


def test_train_quality_is_deployed(service, server, monkeypatch):
    run_here(service, "train-quality/train-quality", monkeypatch)
    assert (service.home / "workspaces" / "quality" / "model.bin").is_file()


def test_a_failure_to_publish_is_a_warning_in_the_run(server, caplog):
    asked = []

    def publish(what):
        asked.append(what)
        raise httpx.ConnectError("refused")

    @flow
    def unpublished():
        or_warn(publish, "table")
        or_warn(publish, "page")
        return "done"

    assert unpublished() == "done"
    assert "cannot show this in the UI: ConnectError: refused" in caplog.text
    assert asked == ["table"]  # such a server is asked no more
    server_lost.clear()


@contextmanager
def served(service, state: Path) -> Iterator["subprocess.Popen[str]"]:
    """Run `make serve` on a copy of the server's database, until the block ends."""
    (state / "prefect").mkdir(parents=True)
    with closing(sqlite3.connect(service.state / "prefect" / "prefect.db")) as database:
        database.execute("VACUUM INTO ?", (str(state / "prefect" / "prefect.db"),))
    command = [sys.executable, "-m", "deployments.serve", f"--port={free_port()}", f"--state={state}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, env=service.environment, stdout=pipe, stderr=pipe, text=True) as process:
        yield process
        process.kill()


def test_lost_runs_are_crashed_and_a_worker_that_ends_ends_it(service, tmp_path):
    deployment = service.read("deployments/name/curate/sample")["id"]
    state = {"type": "PENDING", "state_details": {}}
    lost = service.read(f"deployments/{deployment}/create_flow_run", state=state)["id"]
    with served(service, tmp_path / "state") as process:
        service.read(f"flow_runs/{lost}/set_state", state={"type": "CRASHED"})  # else the next runs here wait for it
        url = process.stdout.readline().split()[-1]
        assert [process.stdout.readline().split()[0] for _ in range(3)] == ["run", "logs", "Ctrl-C"]
        assert httpx.get(f"{url}/api/flow_runs/{lost}").json()["state"]["type"] == "CRASHED"
        [worker] = [one for one in psutil.Process(process.pid).children() if "worker" in one.cmdline()]
        worker.kill()
        assert process.wait(SECONDS) == 1
        assert "serve: the worker has ended: read " in process.stderr.read()
        with pytest.raises(httpx.ConnectError):
            httpx.get(url)


def test_a_signal_ends_it_and_its_server(service, tmp_path):
    with served(service, tmp_path / "state") as process:
        until(lambda: any(log.stat().st_size for log in (tmp_path / "state").glob("server.log")), "for the server")
        [server] = until(psutil.Process(process.pid).children, "for the server")
        process.terminate()
        assert process.wait(SECONDS) == 0
        assert not server.is_running()
