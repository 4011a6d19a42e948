"""`fineweb-mask remove` as a person calls it, on this machine and in a bucket: no byte of what was removed is left."""

import io
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.commands._common import WRONG_USAGE
from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.remote.lease import lease
from fineweb_mask.tasks.storage.remote.object_store import Store
from fineweb_mask.tasks.workspace.manifest import read_manifest
from tests.conftest import Bucket
from tests.integration.conftest import RunSample, Service

Call = Callable[..., Any]


@pytest.fixture
def call(server: None) -> Call:
    def run(*arguments: object) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})

    return run


def holding(files: Iterable[tuple[str, bytes]], texts: list[str]) -> list[str]:
    """Return the files that hold one of these texts, in their bytes or in what their columns hold."""
    found = []
    for name, content in files:
        parts = [content]
        if name.endswith(".parquet"):
            parts += [str(column.to_pylist()).encode() for column in pq.read_table(io.BytesIO(content)).columns]
        wanted = [
            one for text in texts for one in (text.encode(), repr(text).encode()[1:-1], json.dumps(text).encode()[1:-1])
        ]
        found += [name] if any(one in part for part in parts for one in wanted) else []
    return found


@pytest.mark.long
def test_documents_are_removed_from_a_workspace_and_its_exports(
    call: Call, workspace: Path, tmp_path: Path, service: Service
) -> None:
    dataset = pq.read_table(sorted((workspace / "dataset" / "data").rglob("*.parquet")))
    urls, texts = (dataset[name].to_pylist()[:4] for name in ("url", "text"))
    optout = tmp_path / "optout.txt"
    optout.write_text("\n".join([*urls, "https://nowhere.example/"]))
    assert call("export", workspace, "--format", "parquet", "--no-shuffle").exit_code == 0

    def files() -> list[tuple[str, bytes]]:
        return [(str(path.relative_to(workspace)), path.read_bytes()) for path in tree_files(workspace)]

    assert {name.split("/")[0] for name in holding(files(), texts)} >= {"documents", "dataset", "exports"}
    counted = json.loads(call("remove", workspace, "--urls", optout, "--dry-run", "--json").stdout)
    assert (counted["status"], counted["requested"]["documents"]) == ("dry run", 4)

    done = call("remove", workspace, "--urls", optout)
    assert done.exit_code == 0, done.output
    assert "no document  https://nowhere.example/" in done.stdout
    assert "removed 4 documents (4 of the dataset, 0 copies under other names)" in done.stdout
    assert "near-duplicates of them are not known" in done.stdout
    assert holding(files(), texts) == []
    content = read_provenance(find_dataset(str(workspace))).content
    exported = read_manifest(workspace / "exports" / "parquet" / "provenance.json")
    assert exported is not None
    assert exported.details["dataset"] == content
    assert exported.details["settings"]["shuffle"] is False

    receipt = Path(done.stdout.splitlines()[-1].removeprefix("receipt  "))
    checked = call("verify", workspace, "--receipt", receipt, "--json")
    assert (checked.exit_code, json.loads(checked.stdout)["problems"]) == (0, [])
    assert call("verify", workspace / "dataset", "--receipt", receipt).exit_code == 0
    receipt.write_text(receipt.read_text().replace('"copies": 0', '"copies": 1'))
    refused = call("verify", workspace, "--receipt", receipt)
    assert (refused.exit_code, "was changed since it was written" in refused.stderr) == (WRONG_USAGE, True)

    again = call("remove", workspace, "--urls", optout)
    assert again.exit_code == 0
    assert "no document to remove now: the 5 names are kept out of later runs" in again.stdout
    runs = service.read("artifacts/filter", sort="CREATED_DESC", limit=50)
    [shown] = [one["data"] for one in runs if one["key"].startswith("removal-")]
    assert {row["what"]: row[""] for row in json.loads(shown)}["documents"] == 4


def test_wrong_inputs_are_said_in_one_line(call: Call, workspace: Path, tmp_path: Path) -> None:
    for arguments, reason in (
        ((workspace,), "name what is removed: give a file by --urls, --ids, --domains or --texts"),
        ((workspace, "--urls", tmp_path / "missing"), "--urls: .*missing cannot be read"),
        ((workspace, "--urls", "a", "--ids", "b"), "--urls and --ids are given"),
        ((tmp_path, "--urls", "a"), "is no workspace"),
    ):
        done = call("remove", *arguments)
        assert done.exit_code == WRONG_USAGE
        assert "Traceback" not in done.output
        assert reason.split(".*")[-1] in done.stderr


@pytest.mark.long
def test_documents_are_removed_from_a_workspace_in_a_bucket(
    call: Call, bucket: Bucket, run_sample: RunSample, sample_corpus: Path, tmp_path: Path
) -> None:
    url, shard = f"{bucket.url}/ws", "CC-MAIN-2024-30_00000.parquet"
    run_sample(url, f"source.path={sample_corpus / 'corpus' / shard}", "materialize.export=[{format: parquet}]")

    def files() -> list[tuple[str, bytes]]:
        return [(name, bucket.read(name)) for name in bucket.names("ws/")]

    parts = [content for name, content in files() if name.startswith("ws/dataset/data") and name.endswith(".parquet")]
    rows = pq.read_table(io.BytesIO(parts[0])).slice(0, 3)
    ids, texts = rows["id"].to_pylist(), rows["text"].to_pylist()
    (tmp_path / "ids.txt").write_text("\n".join(ids))
    assert {name.split("/")[1] for name in holding(files(), texts)} == {"documents", "dataset", "exports"}
    with lease(Store(url), tmp_path / "another"):
        refused = call("remove", url, "--ids", tmp_path / "ids.txt")
        assert (refused.exit_code, "is using the workspace" in refused.stderr) == (WRONG_USAGE, True)

    done = call("remove", url, "--ids", tmp_path / "ids.txt", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["documents"], found["selected"], found["requested"]["unknown"]) == (3, 3, 0)
    assert {stage["stage"]: stage["cached"] for stage in found["stages"]}["embed"] == 1  # rewritten, not embedded
    assert holding(files(), texts) == []
    assert set(bucket.names("ws/exports/")) >= {"ws/exports/parquet/provenance.json"}
    checked = call("verify", url, "--receipt", found["receipt"], "--json")
    assert (checked.exit_code, json.loads(checked.stdout)["problems"]) == (0, [])
