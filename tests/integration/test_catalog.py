"""The catalog and the records of real runs: whole, repeated, stopped, failed; and a workspace without either."""

import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import fineweb_mask as fm
from fineweb_mask.flows.cli import app
from fineweb_mask.flows.compare import compare
from fineweb_mask.flows.status.catalog import UNFINISHED, UNKNOWN
from fineweb_mask.flows.status.garbage import collect_garbage
from fineweb_mask.flows.status.inspection import inspect_workspace, status_of
from fineweb_mask.tasks.catalog.views import catalog_files, is_current
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace

pytestmark = pytest.mark.long

RECONCILED = """
    SELECT (SELECT count(*) FROM documents) AS ingested,
           (SELECT count(*) FROM selected) AS selected,
           (SELECT count(*) FROM masks WHERE block IS NOT NULL) AS eligible,
           (SELECT count(*) FROM fates WHERE stage <> 'select') AS dropped
    """


def ask(workspace, sql):
    result = CliRunner().invoke(app, ["sql", str(workspace), sql, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_every_run_leaves_a_record_and_the_catalog_shows_what_is_there(workspace, run_sample):
    provenance = json.loads((workspace / "dataset" / "provenance.json").read_text())
    counts = provenance["details"]["counts"]
    before = (workspace / "catalog.duckdb").read_bytes()
    [found] = ask(workspace, RECONCILED)
    assert (workspace / "catalog.duckdb").read_bytes() == before  # the run itself wrote it
    assert found["ingested"] == counts["documents_ingested"]
    assert found["selected"] == counts["selected"]
    assert found["eligible"] + found["dropped"] == counts["documents_in"]

    with fm.open(workspace) as opened:
        masks = opened.sql("FROM masks").count("*").fetchall()
        run_sample(workspace, "selection.lamb=0.3", "selection.select_ratio=0.1")
        with fm.open(workspace, memory_limit="1GB") as again:
            assert again.sql("FROM masks").count("*").fetchall() == masks
    first, second = ask(workspace, "FROM runs")
    assert (first["flow"], first["status"], first["stages_cached"]) == ("curate", "done", [])
    assert (second["stages_run"], second["lamb"]) == (["select", "materialize", "report"], 0.3)
    assert second["stages_cached"] == ["ingest", "dedup", "fit", "score", "embed"]
    assert second["documents_in"] == counts["documents_in"]
    assert [{"selected": second["documents_selected"]}] == ask(workspace, "SELECT count(*) AS selected FROM selected")
    assert second["documents_selected"] < found["selected"] / 2
    assert second["recipe"]["selection"]["select_ratio"] == 0.1
    assert len(second["flow_run"]) == 36
    assert second["objective"] > 0


def test_a_run_that_stops_after_a_stage_and_a_failed_one_are_recorded(workspace, run_sample, tmp_path):
    shutil.rmtree(workspace / "embeddings")
    run_sample(workspace, until="embed")
    *_, stopped = ask(workspace, "FROM runs")
    assert (stopped["flow"], stopped["status"]) == ("curate until embed", "done")
    assert (stopped["stages_run"], stopped["documents_in"]) == (["embed"], None)
    assert ask(workspace, "SELECT count(*) > 0 AS there FROM selected") == [{"there": True}]

    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "bad.parquet").write_text("no Parquet")
    with pytest.raises(BadShardError, match="Parquet magic bytes"):
        run_sample(workspace, f"source.path={corpus}", "ingest.on_bad_shard=fail")
    *_, failed = ask(workspace, "FROM runs")
    assert failed["status"] == "failed"
    assert "Parquet magic bytes" in failed["error"]
    assert failed["recipe"]["source"]["path"] == str(corpus)
    assert ask(workspace, "SELECT count(*) > 0 AS there FROM selected") == [{"there": True}]  # the dataset is


@pytest.fixture
def stopped(workspace):
    """Return a workspace whose last run, with a changed setting, was stopped before it selected anything."""
    last = LastRun.load(Workspace(workspace))
    selection = last.settings.selection.model_copy(update={"lamb": 0.55})
    last.model_copy(update={"settings": last.settings.model_copy(update={"selection": selection})}).save(
        Workspace(workspace)
    )
    return workspace


def test_what_is_selected_is_the_dataset_while_a_newer_run_is_not_finished(stopped, finished, run_sample, caplog):
    expected = ask(finished, RECONCILED)
    for _ in range(2):
        result = CliRunner().invoke(app, ["sql", str(stopped), RECONCILED, "--json"])
        assert json.loads(result.stdout) == expected
        assert result.stderr == f"fineweb-mask: {UNFINISHED}\n"
    with fm.open(stopped) as opened:
        assert opened.selected.count("*").fetchall() == [(expected[0]["selected"],)]
    assert UNFINISHED in caplog.text
    (stopped / "catalog.duckdb").unlink()
    collected = CliRunner().invoke(app, ["gc", str(stopped), "--json"])
    assert collected.exit_code == 0, collected.output
    for _ in range(2):
        result = CliRunner().invoke(app, ["sql", str(stopped), RECONCILED, "--json"])
        assert json.loads(result.stdout) == expected
        assert UNFINISHED in result.stderr
    summary = run_sample(stopped, "selection.lamb=0.55")
    result = CliRunner().invoke(app, ["sql", str(stopped), RECONCILED, "--json"])
    assert (json.loads(result.stdout)[0]["selected"], result.stderr) == (summary.documents_kept, "")


def test_the_dataset_is_found_again_after_files_were_added(workspace, finished, run_sample, sample_corpus, tmp_path):
    corpus = Path(shutil.copytree(sample_corpus / "corpus", tmp_path / "corpus"))
    run_sample(workspace, f"source.path={corpus}")
    pq.write_table(pq.read_table(next(corpus.iterdir())).slice(0, 50), corpus / "new.parquet")
    (workspace / "catalog.duckdb").unlink()
    result = CliRunner().invoke(app, ["sql", str(workspace), RECONCILED, "--json"])
    assert json.loads(result.stdout) == ask(finished, RECONCILED)
    assert UNFINISHED in result.stderr
    for path in (workspace / "runs").iterdir():
        path.unlink()
    LastRun.load(Workspace(workspace)).save(Workspace(workspace))
    settings = LastRun.load(Workspace(workspace)).settings
    changed = settings.model_copy(update={"selection": settings.selection.model_copy(update={"lamb": 0.55})})
    LastRun(settings=changed, folder=str(tmp_path)).save(Workspace(workspace))
    (workspace / "catalog.duckdb").unlink()
    result = CliRunner().invoke(app, ["sql", str(workspace), "SELECT count(*) FROM documents", "--json"])
    assert result.exit_code == 0
    assert UNKNOWN in result.stderr


@pytest.mark.parametrize("place", [5_000, 20_000, 300_000])
def test_a_damaged_catalog_is_written_again(workspace, finished, place):
    expected = ask(finished, RECONCILED)
    catalog = workspace / "catalog.duckdb"
    content = bytearray(catalog.read_bytes())
    content[place] ^= 4
    catalog.write_bytes(content)
    os.utime(catalog)
    assert not is_current(Workspace(workspace))
    assert ask(workspace, RECONCILED) == expected
    assert is_current(Workspace(workspace))
    catalog.write_bytes(content)
    with pytest.raises(DamagedFileError, match="delete it, and ask for it by `fineweb-mask sql"):
        catalog_files(workspace, "masks")


def test_a_run_that_set_a_shard_aside_is_a_finished_run(hostile_run, tmp_path):
    workspace = Path(shutil.copytree(hostile_run.workspace, tmp_path / "copy"))
    last = LastRun.load(Workspace(workspace))
    ingest = last.settings.ingest.model_copy(update={"on_bad_shard": "quarantine"})  # as the first of the two runs
    last.model_copy(update={"settings": last.settings.model_copy(update={"ingest": ingest})}).save(Workspace(workspace))
    found = status_of(inspect_workspace(workspace))
    assert [shard.reason.partition(":")[0] for shard in found.quarantined] == ["ingest"]
    assert {stage.stage: stage.missing for stage in found.stages if stage.missing} == {}
    assert "quarantined" in CliRunner().invoke(app, ["status", str(workspace)]).stdout
    assert not any(one.undecided for one in collect_garbage(str(workspace), []))
    dataset = json.loads((workspace / "dataset" / "provenance.json").read_text())["details"]
    result = CliRunner().invoke(app, ["sql", str(workspace), "SELECT count(*) AS n FROM selected", "--json"])
    assert (json.loads(result.stdout), result.stderr) == ([{"n": dataset["rows"]}], "")
    assert CliRunner().invoke(app, ["verify", str(workspace)]).exit_code == 0


def test_a_comparison_leaves_the_catalog_unless_it_made_anew_what_the_masks_are_of(finished, contest, tmp_path):
    workspace = Path(shutil.copytree(contest.workspace, tmp_path / "copy"))
    settings = LastRun.load(Workspace(workspace)).settings.model_copy(update={"workspace": str(workspace)})
    assert (workspace / "catalog.duckdb").read_bytes() == (finished / "catalog.duckdb").read_bytes()
    expected = ask(workspace, RECONCILED)
    *_, compared = ask(workspace, "FROM runs")
    assert (compared["flow"], compared["status"], compared["documents_selected"]) == ("compare", "done", None)
    next((workspace / "embeddings").glob("CC-MAIN-2024-10_00000.*.parquet")).unlink()
    compare(settings, ["random"])
    assert not (workspace / "catalog.duckdb").exists()
    assert ask(workspace, RECONCILED) == expected


def test_a_workspace_of_before_gets_its_catalog_when_it_is_asked(workspace):
    expected = ask(workspace, RECONCILED)
    (workspace / "catalog.duckdb").unlink()
    shutil.rmtree(workspace / "runs")
    assert ask(workspace, RECONCILED) == expected
    assert ask(workspace, "FROM runs") == []

    (workspace / "catalog.duckdb").unlink()
    next((workspace / "scores").glob("CC-MAIN-2024-10_00000.*.parquet")).unlink()
    assert ask(workspace, "SELECT count(DISTINCT shard) AS shards FROM scores") == [{"shards": 3}]


def test_the_dataset_of_a_run_is_verified(workspace):
    result = CliRunner().invoke(app, ["verify", str(workspace), "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    named = json.loads((workspace / "dataset" / "provenance.json").read_text())["files"]
    assert (found["status"], found["problems"], found["files"]) == ("ok", [], len(named))
    shown = CliRunner().invoke(app, ["verify", str(workspace)])
    assert f"documents {found['rows']:,}  tokens {found['tokens']:,}" in shown.stdout
    (workspace / "dataset" / "README.md").write_text("something else")
    broken = CliRunner().invoke(app, ["verify", str(workspace)])
    assert broken.exit_code == 1
    assert "README.md: has 14 bytes" in broken.stdout
