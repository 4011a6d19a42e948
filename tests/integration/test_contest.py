"""`compare` as a flow on the sample corpus: nothing of the pipeline's run is touched, all is found again."""

import json
from pathlib import Path

import pytest

from fineweb_mask.flows.deployed import compare
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.integration.conftest import built

pytestmark = pytest.mark.long  # a server, a worker or a browser, or whole runs, some of which are killed

LAMBS = [0, 0.25, 0.5, 0.75, 1]
ROOT = Path(__file__).resolve().parents[2]
OF_THE_RUN = ("masks", "dataset", "reports", "run.json")


def contents(workspace: Path) -> dict[str, bytes]:
    files = [
        path for name in OF_THE_RUN for path in [workspace / name, *(workspace / name).rglob("*")] if path.is_file()
    ]
    return {path.relative_to(workspace).as_posix(): path.read_bytes() for path in files}


def artifacts(service, name: str) -> dict[str, dict]:
    flow_run = service.read("flow_runs/filter", sort="START_TIME_DESC", limit=1)[0]
    assert flow_run["name"].startswith(name)
    return service.artifacts(flow_run["id"])


def test_compare_reuses_the_workspace_and_leaves_its_run_alone(contest, prefect_server, finished):
    settings, before = LastRun.load(Workspace(contest.workspace)).settings, contents(finished)
    assert contents(contest.workspace) == before
    compared = contest.compared
    assert built(compared) == {"scale": 1, "contend": 3, "report": 1, "compare": 1}
    assert compared.documents == 1892
    assert compared.selections.keys() == {"mean_field", "random", "greedy"}
    for path in (contest.workspace / "masks").glob("*.parquet"):
        assert any(
            (contest.workspace / "compare" / "masks" / "mean_field").glob(f"{path.name.split('.')[0]}.*.parquet")
        )
    settings = settings.model_copy(update={"workspace": str(contest.workspace)})
    again = compare(settings, ["mean_field", "random", "greedy"], label_column="dump")
    assert built(again) == {"compare": 1}  # the comparison of several weights has taken its page's place
    again = compare(settings, ["mean_field", "random", "greedy"], label_column="dump")
    assert built(again) == {}
    assert again.selections == compared.selections
    shown = artifacts(prefect_server, "compare")
    assert {"compare", "compare-table", "progress-contend"} <= shown.keys()
    assert shown["compare"]["data"].count("](data:image/png;base64,") == 1
    assert len(json.loads(shown["compare-table"]["data"])) == 3


def test_weights_of_quality_are_compared_with_selections_of_before(contest):
    swept = contest.swept
    assert built(swept) == {"contend": 6, "report": 1, "compare": 1}  # five weights and semdedup: random was there
    assert [name for name in swept.selections if "lamb" in name] == [f"mean_field[lamb={x}]" for x in LAMBS]
    assert swept.recommended_lamb in LAMBS[1:-1]
    assert Path(swept.page).is_file()


def test_solvers_tell_how_far_they_are_from_the_threads_of_their_tasks(contest):
    [greedy] = [
        track for (stage, job), track in contest.heard.items() if stage == "contend" and job.startswith("greedy")
    ]
    selected = contest.compared.selections["greedy"]["selected"]
    picks = [step.done for _, steps in greedy for step in steps if step.what == "greedy picks"]
    assert picks == [min(step, max(picks)) for step in range(selected + 1)]  # of about as many as fill the tokens
    shares = [share for share, _ in greedy]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
