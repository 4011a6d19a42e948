"""`fineweb-mask why` and `diff` on whole runs of the sample: here, in Python, and at a real S3 store."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import fineweb_mask as fm
from fineweb_mask.flows.cli import app
from fineweb_mask.tasks.storage.atomic import tree_files


def call(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})


def asked(workspace, *arguments):
    done = call("why", workspace, *arguments, "--json")
    assert done.exit_code in {0, 3}, done.output
    return json.loads(done.stdout.splitlines()[-1]), done.exit_code


@pytest.fixture(scope="module")
def wanted(finished: Path) -> dict[str, str]:
    """A document of every fate, by its id or URL."""
    with fm.open(finished) as opened:
        [(kept,)] = opened.sql("SELECT url FROM selected WHERE url IS NOT NULL ORDER BY id LIMIT 1").fetchall()
        [(left,)] = opened.sql(
            "SELECT id FROM fates WHERE reason = 'not selected' AND inclusion > 0 ORDER BY inclusion LIMIT 1"
        ).fetchall()
        [(copy,)] = opened.sql("SELECT id FROM fates WHERE stage = 'dedup' ORDER BY id LIMIT 1").fetchall()
        [(foreign,)] = opened.sql("SELECT id FROM fates WHERE reason = 'wrong_language' LIMIT 1").fetchall()
    return {"kept": kept, "left": left, "copy": copy, "foreign": foreign, "unknown": "https://nowhere.example/"}


def test_every_fate_is_told_and_unknown_ids_are_listed(finished, wanted):
    found, code = asked(finished, *wanted.values())
    assert (code, found["status"], found["unknown"]) == (3, "unknown", [wanted["unknown"]])
    outcomes = {one[name]: one for one in found["documents"] for name in ("id", "url")}
    assert outcomes[wanted["foreign"]]["decisions"][0]["reason"] == "wrong_language: ingest.languages is en"
    assert outcomes[wanted["kept"]]["outcome"] == "selected"
    assert outcomes[wanted["left"]]["outcome"] == "not selected"
    assert "the same text as" in outcomes[wanted["copy"]]["decisions"][1]["reason"]
    numbers = outcomes[wanted["left"]]["numbers"]
    assert numbers["selected_of_them"] == 473
    assert 0 < numbers["selected_from_ratio"] <= 1
    told = call("why", finished, wanted["left"])
    assert told.exit_code == 0
    assert "fill the budget" in told.stdout
    with fm.open(finished) as opened:
        assert str(opened.why(wanted["left"])) == told.stdout.rstrip("\n")


@pytest.mark.long
def test_a_bucket_answers_as_the_folder_does_and_differs_in_nothing(finished, wanted, bucket, tmp_path):
    for path in tree_files(finished):
        bucket.write(f"ws/{path.relative_to(finished).as_posix()}", path.read_bytes())
    url = f"{bucket.url}/ws"
    here, there = (asked(place, *wanted.values()) for place in (finished, url))
    assert there[0]["workspace"] == url
    assert (there[0]["documents"], there[1]) == (here[0]["documents"], 3)
    before = bucket.names()
    done = call("diff", finished, url, "--tolerance", 0, "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["entered"], found["left"], found["a"]["selected"], found["b"]["selected"]) == (0, 0, 473, 473)
    assert [one["largest"] for one in found["scores"]] == [0] * len(found["scores"])
    assert bucket.names() == before


@pytest.mark.long
def test_an_earlier_run_is_compared_with_the_last(server, workspace, tmp_path):
    first = sorted((workspace / "runs").glob("*.json"))[0].name.partition(".")[0]
    with fm.open(workspace) as opened:
        settings = {**opened.settings.model_dump(mode="json"), "workspace": str(workspace)}
    fm.curate(settings, {"selection": {"select_ratio": 0.1}})
    arguments = ("diff", f"{workspace}@{first}", workspace, "--tolerance", 0.3, "--json")
    done = call(*arguments)
    assert done.exit_code == 1, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["status"], found["a"]["selected"]) == ("changed", 473)
    assert found["left"] == 473 - found["in_both"] > 200
    assert {(one["stage"], one["reason"]) for one in found["left_by"]} == {("select", "not selected")}
    assert all(one["examples"] for one in found["left_by"])
    assert call(*arguments[:-2], 0.99).exit_code == 0
    refused = call("diff", f"{workspace}@1999", workspace)
    assert refused.exit_code == 2
    assert f"@{first}" in refused.stderr
    wrong = call("diff", workspace, workspace, "--by", "nothing")
    assert wrong.exit_code == 2
    assert "no document has a group there" in wrong.stderr
