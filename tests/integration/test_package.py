"""A deployment of the installed wheel, on a real server with a worker of its own."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests.wheel import Installed, write_hostile_packages

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.long
def test_a_deployment_of_the_wheel_runs_in_a_user_s_folder(service, installed_wheel: Installed, tmp_path):
    folder = write_hostile_packages(tmp_path / "user")
    source = pq.read_table(ROOT / "data_samples" / "corpus" / "CC-MAIN-2023-50_00000.parquet")
    pq.write_table(source.slice(0, 300), folder / "corpus.parquet")
    recipe = {
        "workspace": "workspaces/wheel",
        "source": {"path": "corpus.parquet"},
        "quality": {"scorers": [{"name": "english", "kind": "column", "column": "language_score"}]},
        "embedding": {"static_dimensions": 32},
    }
    (folder / "my.yaml").write_text(yaml.safe_dump(recipe))
    deployment = {
        "name": "wheel",
        "entrypoint": "fineweb_mask.flows.curate.curate",
        "build": [{"fineweb_mask.flows.recipe.as_parameters": {"id": "recipe", "path": "my.yaml"}}],
        "parameters": {"settings": "{{ recipe.settings }}"},
        "pull": [{"prefect.deployments.steps.set_working_directory": {"directory": str(folder)}}],
        "work_pool": {"name": "wheel"},
    }
    (folder / "prefect.yaml").write_text(yaml.safe_dump({"name": "user", "deployments": [deployment]}))

    def prefect(*arguments: str) -> None:
        done = installed_wheel.call(folder, "python", "-m", "prefect", *arguments, PREFECT_API_URL=f"{service.url}/api")
        assert done.returncode == 0, done.stdout + done.stderr

    prefect("work-pool", "create", "wheel", "--type", "process")
    prefect("--no-prompt", "deploy", "--all")
    prefect("deployment", "run", "curate/wheel")
    prefect("worker", "start", "--pool", "wheel", "--run-once")
    deployed = service.read("deployments/name/curate/wheel")
    [found] = service.read("flow_runs/filter", flow_runs={"deployment_id": {"any_": [deployed["id"]]}})
    assert found["state"]["type"] == "COMPLETED"
    assert (folder / "workspaces" / "wheel" / "dataset" / "provenance.json").is_file()
