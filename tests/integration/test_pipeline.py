"""The pipeline on the sample corpus, run by Prefect: what is counted, cached, rebuilt and chosen."""

import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_samples.outcome import outcomes
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.status.garbage import collect_garbage
from fineweb_mask.flows.status.inspection import finished_run, inspect_workspace, status_of
from fineweb_mask.tasks.workspace.manifest import read_manifest
from fineweb_mask.tasks.workspace.records.runs import RunRecord
from tests.integration.conftest import built, sample_command, with_server

ROOT = Path(__file__).resolve().parents[2]
SHARDS = 4


def rows(workspace: Path) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in sorted((workspace / "dataset" / "data").rglob("*.parquet")))


def masks(workspace: Path) -> dict[str, bytes]:
    """Return the masks of the last run, by shard; those of other settings stay in the folder."""
    with duckdb.connect(workspace / "catalog.duckdb", read_only=True) as catalog:
        files = catalog.execute("SELECT shard, path FROM stored.files WHERE stage = 'masks'").fetchall()
    return {shard: (workspace / path).read_bytes() for shard, path in files}


def test_a_second_run_builds_nothing_and_accounts_for_every_document(
    workspace, finished, run_sample, small_sample, sample_corpus
):
    """It needs files alone; without Prefect, it leaves and returns the same."""
    settings = load_recipe(ROOT / "deployments" / "recipes" / "sample.yaml", small_sample, str(workspace))
    shutil.rmtree(workspace / "cache")
    by_prefect = run_sample(workspace)
    assert built(by_prefect) == {}
    assert contents(workspace / "dataset") == contents(finished / "dataset")
    sources = sum(pq.read_metadata(path).num_rows for path in (sample_corpus / "corpus").glob("*.parquet"))
    kept, dropped = by_prefect.documents_kept, by_prefect.dropped
    assert by_prefect.documents_in == sources == kept + sum(dropped.values()) + by_prefect.not_selected
    assert kept == rows(workspace).num_rows == round(0.25 * by_prefect.counts.documents_eligible)
    assert {"duplicate", "wrong_language", "null_text", "empty_text", "too_short"} <= dropped.keys()
    assert Path(by_prefect.card).is_file()
    assert Path(by_prefect.report).is_file()

    catalog = workspace / "catalog.duckdb"
    catalog.unlink()
    records = sorted((workspace / "runs").iterdir())
    summary = finished_run(settings)
    assert summary == by_prefect
    assert catalog.is_file()
    *same, by_itself = sorted((workspace / "runs").iterdir())
    assert same == records
    old, new = (RunRecord.model_validate_json(path.read_text()) for path in (records[-1], by_itself))
    of_one_run = {"started", "seconds", "flow_run"}
    assert new.model_dump(exclude=of_one_run) == old.model_dump(exclude=of_one_run)
    assert new.flow_run is None
    next((workspace / "scores").glob("*.parquet")).unlink()
    assert finished_run(settings) is None
    assert len(list((workspace / "runs").iterdir())) == len(records) + 1


def test_lamb_reruns_selection_and_what_follows(workspace, run_sample):
    before, dataset = masks(workspace), rows(workspace)
    summary = run_sample(workspace, "selection.lamb=0.9")
    assert built(summary) == {"select": 1, "materialize": 2, "report": 2}
    assert masks(workspace) != before
    assert built(run_sample(workspace)) == {"materialize": 2, "report": 1}  # its masks are still there
    assert masks(workspace) == before
    assert rows(workspace).equals(dataset)


@pytest.mark.long
def test_another_corpus_in_a_used_workspace_is_named_and_fitted_anew(workspace, run_sample, caplog):
    for number in range(2):
        path = workspace.parent / "other" / f"other{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        add_shard(path)
    source = f"source.path={path.parent}"
    fitted = built(run_sample(workspace, source, until="embed"))["fit"]
    assert fitted == 2  # all but the classifier, which is trained on labels
    assert "another corpus than before: what was fitted on CC-MAIN-2023-50_00000, " in caplog.text
    fitted = [read_manifest(file) for file in (workspace / "fitted").glob("*.json")]
    assert {name for one in fitted if one is not None for name in one.fitted_on} == {"other0", "other1"}
    assert built(run_sample(workspace, source, until="embed")) == {}


def add_shard(path: Path) -> None:
    """Write a shard of which half the documents are in the sample already."""
    documents = pq.read_table(ROOT / "data_samples" / "corpus" / "CC-MAIN-2024-30_00000.parquet")
    pq.write_table(documents.slice(250, 500), path)


LOST = (
    "documents/{shard}.*.parquet",
    "dropped/{shard}.*.parquet",
    "duplicates/corpus.*.parquet",
    "losses/corpus.*.parquet",
    "scores/{shard}.*.parquet",
    "embeddings/{shard}.*.parquet",
    "masks/{shard}.*.parquet",
    "fitted/encoder.*/model.safetensors",
    "fitted/encoder.*.json",
    "fitted/quality-fasttext.*.bin",
    "fitted/quality-statistics.*.json",
    "dataset/data/CC-MAIN-2024-10/part-00000.parquet",
    "dataset/README.md",
    "dataset/provenance.json",
    "fitted/witness.*/manifest.json",
    "reports/index.html",
)


@pytest.mark.long
def test_what_is_lost_is_all_that_is_rebuilt(workspace, run_sample, sample_corpus):
    """One of each kind, deleted or cut off; those of shards are of different shards, so that no other one is built."""
    before_rows, before_masks = rows(workspace), masks(workspace)
    shards = sorted(path.stem for path in (sample_corpus / "corpus").glob("*.parquet"))
    for index, target in enumerate(LOST):
        [path] = workspace.glob(target.format(shard=shards[index % SHARDS]))
        if index % 2:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    stages = dict.fromkeys(["ingest", "dedup", "materialize", "report"], 2)
    stages |= dict.fromkeys(["score", "embed", "select"], 1)
    assert built(run_sample(workspace)) == stages | {"fit": 3}  # the encoder's two files are made by one fit
    assert rows(workspace).equals(before_rows)
    assert masks(workspace) == before_masks


def test_selection_has_less_spam_fewer_near_copies_and_broader_topics_than_top_quality(finished):
    """It is the table that `make demo` prints."""
    found = outcomes(finished)
    best, selected = found["best quality"], found["selected"]
    assert selected.pages == best.pages == rows(finished).num_rows
    assert selected.spam < 0.67 * best.spam
    assert selected.topics > 1.15 * best.topics
    assert selected.near_copies < 0.1 * found["all pages"].near_copies < best.near_copies


@pytest.mark.long
def test_a_new_shard_leaves_the_others_and_what_was_selected_alone(workspace, run_sample, sample_corpus, tmp_path):
    """Even if its name comes first, and others hold copies of its documents: blocks by order have their share each."""
    corpus = Path(shutil.copytree(sample_corpus / "corpus", tmp_path / "corpus"))
    overrides = (f"source.path={corpus}", "selection.block_size=300", "selection.blocks=order")
    summary = run_sample(workspace, *overrides)
    blocks = json.loads((workspace / "dataset" / "provenance.json").read_text())["details"]["blocks"]
    assert summary.blocks == len(blocks) > SHARDS
    assert all(block["selected"] == round(0.25 * block["documents"]) for block in blocks)
    assert max(block["documents"] for block in blocks) <= 300
    in_dataset = Counter(rows(workspace)["block"].to_pylist())
    assert in_dataset == {block["name"]: block["selected"] for block in blocks}
    # What was made with the earlier blocks.
    stale = [stage.stale for stage in status_of(inspect_workspace(workspace)).stages]
    before = masks(workspace)
    [manifest] = (workspace / "fitted").glob("encoder.*.json")
    encoder = manifest.read_bytes()
    add_shard(corpus / "CC-MAIN-2099-01_00000.parquet")
    assert built(run_sample(workspace, *overrides)) == {
        **dict.fromkeys(["ingest", "score", "embed", "select"], 1),
        "dedup": 2,  # the lists, and the losses by group
        **dict.fromkeys(["materialize", "report"], 2),
    }
    assert manifest.read_bytes() == encoder
    after = masks(workspace)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 1
    status = status_of(inspect_workspace(workspace))
    assert all(stage.missing == 0 for stage in status.stages)
    stale[1] += 1  # the lists of duplicates
    assert [stage.stale for stage in status.stages] == stale
    refitted = run_sample(workspace, *overrides, refit=["encoder"], until="embed")
    assert built(refitted) == {"fit": 1, "embed": SHARDS + 1}


@pytest.mark.long
def test_a_corpus_of_several_blocks_is_cut_into_documents_that_are_alike(
    workspace, run_sample, sample_corpus, tmp_path
):
    corpus = Path(shutil.copytree(sample_corpus / "corpus", tmp_path / "corpus"))
    overrides = (f"source.path={corpus}", "selection.block_size=500")
    summary = run_sample(workspace, *overrides)
    assert summary.documents_kept == round(0.25 * summary.counts.documents_eligible)
    blocks = json.loads((workspace / "dataset" / "provenance.json").read_text())["details"]["blocks"]
    assert sum(block["documents"] for block in blocks) == summary.counts.documents_eligible
    assert max(block["documents"] for block in blocks) <= 500
    assert all(block["random_objective"] < block["objective"] <= block["upper_bound"] + 1e-6 for block in blocks)
    # sample, centres, where documents are, the plan, shards by cell, cells, masks
    assert built(summary)["select"] == 4 + 1 + 4 + 1 + 4 + len(blocks) + 1
    before = masks(workspace)
    removed = {found.folder for found in collect_garbage(str(workspace), [])}
    assert {"samples", "divided", "chosen"} <= removed
    add_shard(corpus / "CC-MAIN-2099-01_00000.parquet")
    refitted = run_sample(workspace, *overrides, refit=["selection"])
    assert before.keys() < masks(workspace).keys()
    assert all(stage.missing == 0 for stage in status_of(inspect_workspace(workspace)).stages)
    assert refitted.documents_kept == round(0.25 * refitted.counts.documents_eligible)
    of_stage = {stage.stage: stage.rows for stage in status_of(inspect_workspace(workspace)).stages}
    assert of_stage["select"] == of_stage["ingest"]  # where documents are is no second selection of them
    [cells] = [found for found in collect_garbage(str(workspace), []) if found.folder == "cells"]
    assert (cells.files, cells.undecided) == (SHARDS, 0)  # those of the cells before


@pytest.mark.long
def test_two_recipes_run_in_one_workspace_at_once(run_sample, small_sample, server, finished, tmp_path):
    """Each as if it were alone: the stages that they share are the same files, whoever writes them."""
    together = tmp_path / "together"
    command = sample_command(together, small_sample, "--json", "--until", "materialize")
    recipes = {  # the second is that of the finished workspace
        "other": ("--set", "selection.lamb=0.9", "--set", f"materialize.output={tmp_path / 'other'}"),
        "same": ("--set", f"materialize.output={tmp_path / 'same'}"),
    }
    runs = [
        subprocess.Popen([*command, *own], cwd=ROOT, env=with_server(), stdout=subprocess.PIPE)
        for own in recipes.values()
    ]
    for run in runs:
        output, _ = run.communicate(timeout=240)
        assert run.returncode == 0, output
    alone = Path(shutil.copytree(finished, tmp_path / "alone"))
    run_sample(alone, "selection.lamb=0.9", until="materialize")
    for name, workspace in (("other", alone), ("same", finished)):
        assert contents(tmp_path / name / "data") == contents(workspace / "dataset" / "data")
    for folder in ("documents", "scores", "embeddings"):
        assert contents(together / folder) == contents(finished / folder)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.parquet")}


@pytest.mark.long
def test_machines_that_take_a_share_each_fill_one_workspace(run_sample, small_sample, server, finished, tmp_path):
    together = tmp_path / "together"
    command = sample_command(together, small_sample, "--json")
    for until in (["--until", "ingest"], []):
        runs = [
            subprocess.Popen(
                [*command, "--shards", f"{number}/2", *until], cwd=ROOT, env=with_server(), stdout=subprocess.PIPE
            )
            for number in (1, 2)
        ]
        for run in runs:
            output, _ = run.communicate(timeout=240)
            assert run.returncode == 0, output
            files = {stage["stage"]: stage["files"] for stage in json.loads(output.splitlines()[-1])["stages"]}
            assert {files.get("score"), files.get("embed")} == ({None} if until else {2})
    assert not (together / "masks").exists()
    assert set(built(run_sample(together))) == {"dedup", "select", "materialize", "report"}
    assert masks(together) == masks(finished)
    assert contents(together / "dataset" / "data") == contents(finished / "dataset" / "data")
