"""The command as a user types it, with a source on a hub that throttles, refuses and breaks off."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.integration.conftest import ROOT, SMALL_ENCODER, Service
from tests.tasks.hub_server import SIGNATURE, HubServer

TOKEN = "hf_good"


@pytest.mark.long
def test_a_private_dataset_on_the_hub_is_curated_through_failures(service: Service, tmp_path: Path) -> None:
    corpus = ROOT / "data_samples" / "corpus"
    parquet = pq.read_table(corpus / "CC-MAIN-2023-50_00000.parquet").slice(0, 300)
    lines = pq.read_table(corpus / "CC-MAIN-2024-30_00000.parquet").slice(0, 200)
    pq.write_table(parquet, tmp_path / "a.parquet")
    workspace = tmp_path / "workspace"
    with HubServer(tmp_path / "hub") as hub:
        hub.write("me/web/main", "data/a.parquet", (tmp_path / "a.parquet").read_bytes())
        text = "".join(json.dumps(row, default=str) + "\n" for row in lines.to_pylist())
        hub.write("me/web/main", "data/b.jsonl.gz", gzip.compress(text.encode()))
        hub.make_private("me/web")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")} | {
            "PREFECT_API_URL": f"{service.url}/api",
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": TOKEN,
            "HF_HOME": str(tmp_path / "home"),
            "DO_NOT_TRACK": "1",
        }
        settings = ("source.path=hf://datasets/me/web@main/data", *SMALL_ENCODER)

        arguments = [
            "run",
            "deployments/recipes/sample.yaml",
            "--json",
            "--until",
            "ingest",
            "--workspace",
            str(workspace),
        ]
        for setting in settings:
            arguments += ["--set", setting]
        hub.fail(10)
        done = subprocess.run(
            [sys.executable, "-m", "fineweb_mask.flows.cli", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert any(line.startswith("FAILED") for line in hub.requests)
        summary = json.loads(done.stdout.splitlines()[-1])
        assert (summary["status"], summary["stages"][0]["files"]) == ("done", 2)
        for shard, source in {"a": parquet, "b.jsonl.gz": lines}.items():
            [path] = (workspace / "documents").glob(f"{shard}.*.parquet")
            kept = pq.read_table(path, columns=["text"])["text"].to_pylist()
            assert len(kept) > 100
            assert set(kept) <= set(source["text"].to_pylist())
        files = [path for folder in (workspace, service.state) for path in folder.rglob("*") if path.is_file()]
        for marker in (TOKEN, SIGNATURE):
            assert marker not in done.stdout + done.stderr
            assert [path for path in files if marker.encode() in path.read_bytes()] == []
