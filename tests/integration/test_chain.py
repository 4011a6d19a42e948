"""What a run tells Prefect, and what a person does there: the event of a dataset, a retry, containers' credentials."""

import asyncio
import json
from typing import Any

import pyarrow.parquet as pq
import pytest
from prefect.blocks.system import Secret
from prefect.workers.base import BaseJobConfiguration

from fineweb_mask.flows.deployed import curate
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.models.settings import PipelineSettings
from tests.integration.conftest import DEPLOYED, ROOT, until

pytestmark = pytest.mark.long


def events_of(service, flow_run: str) -> dict[str, dict[str, Any]]:
    """Return a run's own events by name and resource."""
    related = {"id": [f"prefect.flow-run.{flow_run}"]}
    names = {"prefix": ["fineweb-mask."]}
    found = service.read("events/filter", filter={"event": names, "related": related}, limit=50)["events"]
    return {f"{one['event']} {one['resource'].get('prefect.resource.name')}": one for one in found}


def test_a_dataset_is_told_of_with_its_figures(service, sample_run):
    found = until(lambda: events_of(service, sample_run["id"]), "for the run's event")
    assert list(found) == [f"fineweb-mask.dataset.published {service.home}/workspaces/sample/dataset"]
    [published] = (event["payload"] for event in found.values())
    assert published["documents_kept"] == 473
    assert published["documents_in"] == 2000
    assert 0 <= published["gap"] < 1
    assert 0 <= published["near_duplicates"] < 0.05
    recipe = load_recipe("sample", [f"{name}={value}" for name, value in DEPLOYED.items()])
    assert PipelineSettings.model_validate(published["recipe"]) == recipe


def test_a_retry_in_the_ui_goes_on_from_what_the_workspace_has(service, server):
    corpus, workspace = service.home / "broken", service.home / "workspaces" / "retried"
    corpus.mkdir()
    good = sorted((service.home / "data_samples" / "corpus").glob("*.parquet"))
    (corpus / good[0].name).symlink_to(good[0])
    curate(load_recipe("sample", [f"source.path={corpus}"], str(workspace)), until="ingest")
    broken = corpus / "z.parquet"
    broken.write_bytes(b"not parquet")
    overrides = {"workspace": "workspaces/retried", "source.path": "broken", "ingest.on_bad_shard": "fail"}
    failed = service.start("curate/sample", overrides=overrides, until="ingest")
    until(lambda: service.state_of(failed) == "Failed", "for the run to fail")

    pq.write_table(pq.read_table(good[1]), broken)
    state = {"type": "SCHEDULED", "name": "AwaitingRetry"}  # as the UI does
    service.read(f"flow_runs/{failed}/set_state", state=state)
    until(lambda: service.state_of(failed) == "Completed", "for the retry")

    def tasks():
        runs = service.read("task_runs/filter", flow_runs={"id": {"any_": [failed]}}, limit=200)
        return {run["name"]: run["state"]["name"] for run in runs if run["flow_run_run_count"] == 2}

    # Their states are events, which the server may read after that of the flow.
    until(lambda: tasks().get("ingest z") == "Completed", "for the task's state")
    until(lambda: tasks().get(f"ingest {good[0].stem}") == "Cached", "for the other's")
    assert len(list((workspace / "documents").glob("*.parquet"))) == 2


def test_containers_have_credentials_that_no_deployment_holds(service, server, monkeypatch):
    names = ("hf-token", "aws-access-key-id", "aws-secret-access-key")
    for name in names:
        Secret(value=f"the {name}").save(name, overwrite=True)
    template = json.loads((ROOT / "deployments" / "containers.json").read_text())
    service.read("work_pools/", name="containers", type="docker", base_job_template=template)
    monkeypatch.setenv("FINEWEB_MASK_IMAGE", "curation:1")
    monkeypatch.setenv("FINEWEB_MASK_WORKSPACE", "s3://bucket/fineweb")
    service.command("--no-prompt", "deploy", "--all", "--prefect-file", "deployments/containers.yaml")
    deployment = service.read("deployments/name/curate/container")
    assert deployment["parameters"]["overrides"] == {"workspace": "s3://bucket/fineweb"}
    assert "the hf-token" not in json.dumps(deployment)
    pool = service.read("work_pools/containers")
    assert "the hf-token" not in json.dumps(pool)
    values = deployment["job_variables"]
    job = asyncio.run(BaseJobConfiguration.from_template_and_values(pool["base_job_template"], values))  # as the worker
    assert {job.env[name] for name in ("HF_TOKEN", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")} == {
        f"the {name}" for name in names
    }
    assert values["image"] == "curation:1"
