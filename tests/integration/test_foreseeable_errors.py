"""Errors that could be foreseen: each ends the command in one line, before any work begins where that is possible.

What needs an environment of its own, or work, is run in a new process, as a person starts it. What it prints on
stderr is counted, but for the lines of level INFO that say how far a run is: on a terminal there are bars in their
place.
"""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from fineweb_mask.flows.cli import app
from tests.integration.conftest import Service

ROOT = Path(__file__).resolve().parents[2]
WORK_BEGINS = "running; --verbose logs every step"
WHAT_IS_READ = re.compile(r"[a-z ]+?  +\S")  # the lines of the inventory
MOST_LINES = 3  # of a command that fails, the one that helps is the last
UI_CASE = "budget"
END = "\x1e"  # of what one command says
BUSY = "Still processing items"  # Prefect's workers, at the end, on a machine that is busy
OF_A_BUG = ("Traceback", "this should not happen")
NO_NETWORK = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
NO_HUB = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
NO_SERVER = {"PREFECT_API_URL": "http://127.0.0.1:9/api"}
RECIPE = """\
workspace: not used
source: {path: @corpus}
ingest: {min_chars: 20}
quality: {scorers: [{kind: column, column: grade}]}
embedding: {static_dimensions: 16}
selection: {select_ratio: 0.25}
"""


class Case(NamedTuple):
    """A command that cannot work."""

    name: str
    says: str  # in the one line that helps
    changes: tuple[str, ...] = ()  # of the recipe; @ is the folder of the files
    environment: Mapping[str, str] = {}
    recipe: str = "recipe.yaml"
    workspace: str = ""  # by default one of its own
    without: str = ""  # a package that is not installed


def scorer(settings: str) -> tuple[str]:
    return (f"quality.scorers=[{{{settings}}}]",)


FOUND_BEFORE = [
    # settings
    Case("metrics_are_empty", "selection.metrics: must name one of", ("selection.metrics={}",)),
    Case("min_chars_of_2_to_63", "ingest.min_chars: must be at most", (f"ingest.min_chars={2**63}",)),
    Case("regex", "regular expression", ("ingest.filters=[{kind: regex, options: {regex_exp: '('}}]",)),
    Case("device", "selection.device: ", ("selection.device=gpu",)),
    Case("key_twice", "'ingest' is given twice", recipe="twice.yaml"),
    Case("no_recipe", "cannot read the recipe", recipe="none.yaml"),
    # models
    Case("no_model_folder", "embedding.model: there is no folder", ("embedding.model=./no/folder",)),
    Case("no_fasttext", "is not a fastText model", scorer("kind: fasttext, model: @text.parquet")),
    Case("no_file", "quality.scorers.0.model: ", scorer("kind: fasttext, model: @none.bin")),
    Case("no_labels", "quality.scorers.0.labels: ", scorer("kind: fasttext, labels: {path: none.parquet}")),
    Case("no_gpu", "selection.device: cuda:64 needs a GPU", ("selection.device=cuda:64",)),
    # files and columns
    Case("no_source", "source.path: ", ("source.path=@none",)),
    Case("source_is_all", "overlap", ("source.path=/",)),
    Case("no_text_column", "source.text_column: ", ("source.text_column=body",)),
    Case("no_column", "quality.scorers.0.column: ", scorer("kind: column, column: none")),
    Case("scores_are_texts", "'topic' must hold numbers", scorer("kind: column, column: topic")),
    Case("no_group_column", "selection.groups.column: ", ("selection.groups={column: none}",)),
    Case("against_cut_off", "ingest.against: cut.parquet cannot be read", ("ingest.against=[@cut.parquet]",)),
    Case("against_itself", "workspace: ", ("ingest.against=[@own]",), workspace="own"),
    Case("against_its_dataset", "workspace: ", ("ingest.against=['@own/*/a*']",), workspace="own"),
    Case("no_benchmark", "ingest.decontaminate: text.parquet", ("ingest.decontaminate=[@text.parquet]",)),
    Case("benchmark_without_items", "no column 'text', 'question'", ("ingest.decontaminate=[@answers.parquet]",)),
    Case("missing_benchmark", "ingest.decontaminate: ", ("ingest.decontaminate=[@none.jsonl]",)),
    Case("threshold_of_2", "ingest.near_dedup: ", ("ingest.near_dedup=2",)),
    Case(
        "targets_without_text",
        "selection.targets.path: no file has a column 'text'",
        ("selection.solver=betr", "selection.targets={path: @questions.parquet}"),
    ),
    # folders, packages, addresses
    Case("workspace_in_a_file", "workspace: ", workspace="recipe.yaml/w"),
    Case("workspace_read_only", "workspace: ", workspace="/proc/w"),
    Case("output_read_only", "materialize.output: ", ("materialize.output=/proc/output",)),
    Case("no_cluster", "no Ray cluster answers at 127.0.0.1:9", ("engine.kind=ray",), {"RAY_ADDRESS": "127.0.0.1:9"}),
    Case(
        "no_datatrove",
        "ingest.filters needs datatrove",
        ("ingest.filters=[{kind: gopher_quality}]",),
        without="datatrove",
    ),
    Case("no_rensa", "'near-dedup'", ("ingest.near_dedup=0.7",), without="rensa"),
    Case("no_ray", "extra 'ray'", ("engine.kind=ray",), without="ray"),
    Case("no_warcio", "WARC files need warcio", ("source.path=@crawl.warc",), without="warcio"),
    Case(
        "no_datatrove_for_tokens",
        "materialize.export.0: files of tokens need datatrove",
        ("materialize.export=[{format: megatron, tokenizer: ./none.json}]",),
        without="datatrove",
    ),
    Case(
        "no_tokenizer",
        "materialize.export.0: tokenizer: ",
        ("materialize.export=[{format: megatron, tokenizer: ./none.json}]",),
    ),
]
FOUND_BEFORE_ELSEWHERE = [
    Case("no_network_fasttext", "hf://you/none", scorer("kind: fasttext, model: 'hf://you/none/m.bin'"), NO_NETWORK),
    Case("no_network_embedding", "embedding.model: 'you/none'", ("embedding.model=you/none",), NO_NETWORK),
    Case("no_network_edu", "quality.scorers.0.model", scorer("kind: edu"), NO_NETWORK),
    Case("no_hub", "cannot be downloaded from the hub", ("embedding.model=you/none",), NO_HUB),
]
FOUND_LATER = [
    Case("sidecar_cut_off", "cannot read it", scorer("kind: sidecar, path: '@cut/{shard}.npy'")),
    Case("all_known", "120 known (ingest.against)", ("ingest.against=[@known.parquet]",)),
    Case("budget", "budget is 1000 documents, but there are only 120", ("selection.budget=1000",)),
    Case("against_damaged", "damaged.parquet", ("ingest.against=[@damaged.parquet]",)),
    Case(
        "labels_of_one_class",
        "every label falls on the same side of the threshold",
        scorer("kind: fasttext, labels: {path: @known.parquet, score_column: grade, threshold: 9}"),
    ),
    Case("no_encoder", "cannot load the embedding model", ("embedding.model=@encoder",)),
    Case("no_server", "the Prefect server at http://127.0.0.1:9/api cannot be used", environment=NO_SERVER),
]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small corpus with its recipe, and files that are not as they should be."""
    folder = tmp_path_factory.mktemp("foreseeable")
    random = np.random.default_rng(0)
    words = [f"word{number}" for number in range(200)]
    rows = [
        {"id": str(number), "text": " ".join(random.choice(words, 30)), "grade": float(number % 5), "topic": "sea"}
        for number in range(120)
    ]
    (folder / "corpus").mkdir()
    for name, part in {"corpus/a": rows[:60], "corpus/b": rows[60:], "known": rows}.items():
        pq.write_table(pa.Table.from_pylist(part), folder / f"{name}.parquet")
    pq.write_table(pa.table({"question": ["What is it?"]}), folder / "questions.parquet")
    pq.write_table(pa.table({"answer": ["It is."]}), folder / "answers.parquet")
    whole = (folder / "known.parquet").read_bytes()
    (folder / "own" / "documents").mkdir(parents=True)
    (folder / "own" / ".fineweb-mask").touch()
    (folder / "own" / "documents" / "a.parquet").write_bytes(whole)
    (folder / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (folder / "damaged.parquet").write_bytes(whole[:500] + bytes(2_000) + whole[2_500:])
    (folder / "text.parquet").write_text("not Parquet, and no model of fastText either")
    (folder / "crawl.warc").write_text("WARC/1.0\r\n")
    (folder / "cut").mkdir()
    for shard in "ab":
        np.save(folder / "cut" / f"{shard}.npy", np.zeros(60))
        path = folder / "cut" / f"{shard}.npy"
        path.write_bytes(path.read_bytes()[:200])
    (folder / "encoder").mkdir()
    for name in ("config.json", "modules.json", "tokenizer.json", "model.safetensors"):
        (folder / "encoder" / name).write_text("{")
    (folder / "recipe.yaml").write_text(RECIPE.replace("@", f"{folder}/"))
    (folder / "twice.yaml").write_text(f"{RECIPE}ingest: {{min_chars: 30}}\n".replace("@", f"{folder}/"))
    return folder


def arguments_of(case: Case, files: Path) -> list[str]:
    workspace = files / (case.workspace or f"workspaces/{case.name}")
    changes = [part for change in case.changes for part in ("--set", change.replace("@", f"{files}/"))]
    return ["run", str(files / case.recipe), "--workspace", str(workspace), *changes]


class Ended(NamedTuple):
    """How a command ended, and what it said on stderr."""

    code: int
    said: str


EndOf = Callable[[Case], Ended]


ONE_AFTER_THE_OTHER = f"""
import json, sys
from fineweb_mask.flows import cli

for command in json.loads(sys.argv[1]):
    sys.argv = ["fineweb-mask", *command]
    try:
        cli.main()
    except SystemExit as ended:
        print(ended.code, end="{END}", file=sys.stderr, flush=True)
"""


def run(cases: list[Case], files: Path, environment: Mapping[str, str]) -> dict[str, Ended]:
    """Run cases one after the other in a process of that environment: most of one's time is its imports."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    terminal = {"PREFECT_LOGGING_LEVEL": "WARNING", "PREFECT_HOME": str(files / "prefect")}
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps([arguments_of(case, files) for case in cases])],
        cwd=files,
        env={**mine, **terminal, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    *before, last = done.stderr.split(END)
    if len(before) < len(cases):  # the last ended the process
        before.append(f"{last}{done.returncode}")
    found = (re.fullmatch(r"(.*?)(\d+)", one, re.DOTALL) for one in before)
    return {case.name: Ended(int(one[2]), one[1]) for case, one in zip(cases, found, strict=True) if one}


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest, files: Path) -> EndOf:
    """How the command of a case ended; those of one environment share a process."""

    @cache
    def all_of(found_before: bool, environment: tuple[tuple[str, str], ...]) -> dict[str, Ended]:
        of_all = {"PREFECT_API_URL": "" if found_before else f"{request.getfixturevalue('prefect_server').url}/api"}
        cases = FOUND_BEFORE_ELSEWHERE if found_before else FOUND_LATER
        same = [case for case in cases if tuple(case.environment.items()) == environment]
        return run(same, files, of_all | dict(environment))

    return lambda case: all_of(case in FOUND_BEFORE_ELSEWHERE, tuple(case.environment.items()))[case.name]


def check_that_it_was_found_before(case: Case, code: int, said: str, files: Path) -> None:
    assert code == 2, said
    [line] = said.splitlines()
    assert line.startswith("fineweb-mask: ")
    assert case.says in line
    assert not (files / "workspaces" / case.name).exists()


@pytest.mark.parametrize("case", FOUND_BEFORE, ids=lambda case: case.name)
def test_it_is_found_before_the_work_begins(case: Case, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.without:
        hidden = {name for name in sys.modules if name.partition(".")[0] == case.without}
        for name in {case.without, *hidden}:
            monkeypatch.setitem(sys.modules, name, None)
    for name, value in case.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(files)
    done = CliRunner().invoke(app, arguments_of(case, files))
    check_that_it_was_found_before(case, done.exit_code, done.stderr, files)


@pytest.mark.parametrize("case", FOUND_BEFORE_ELSEWHERE, ids=lambda case: case.name)
def test_what_is_out_of_reach_is_found_before_the_work_begins(case: Case, ended: EndOf, files: Path) -> None:
    check_that_it_was_found_before(case, *ended(case), files)


@pytest.mark.long
@pytest.mark.parametrize("case", FOUND_LATER, ids=lambda case: case.name)
def test_what_only_a_run_can_find_ends_it_in_one_line(case: Case, ended: EndOf) -> None:
    code, said = ended(case)
    assert code == 1, said
    *before, line = (one for one in said.splitlines() if BUSY not in one)
    assert line.startswith("fineweb-mask: ")
    assert case.says in line
    begins = before.index(WORK_BEGINS)
    assert all(WHAT_IS_READ.match(one) for one in before[:begins])
    assert len(before) - begins < MOST_LINES
    assert not any(words in said for words in OF_A_BUG)


@pytest.mark.long
def test_prefect_s_ui_shows_the_reason_and_no_traceback(ended: EndOf, prefect_server: Service) -> None:
    [case] = [case for case in FOUND_LATER if case.name == UI_CASE]
    assert ended(case).code == 1
    runs = prefect_server.read("flow_runs/filter", sort="START_TIME_DESC", limit=100)
    [run] = [run for run in runs if run["parameters"].get("settings", {}).get("workspace", "").endswith(f"/{UI_CASE}")]
    assert (run["state"]["type"], run["state"]["message"]) == ("FAILED", f"{case.says}: lower it, or use select_ratio")
    tasks = prefect_server.read("task_runs/filter", flow_runs={"id": {"any_": [run["id"]]}})
    assert run["state"]["message"] in {task["state"]["message"] for task in tasks if task["state"]["type"] == "FAILED"}
    logs = prefect_server.read("logs/filter", logs={"flow_run_id": {"any_": [run["id"]]}})
    assert logs
    assert not [log for log in logs if "Traceback" in log["message"] or 'File "' in log["message"]]


def test_a_port_in_use_is_told_in_one_line(files: Path) -> None:
    with socket.socket() as used:
        used.bind(("127.0.0.1", 0))
        used.listen()
        port = used.getsockname()[1]
        serve = [sys.executable, "-m", "deployments.serve", f"--port={port}", "--state", str(files / "serve")]
        done = subprocess.run(serve, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"serve: port {port} is taken by another program: make serve PORT={port + 1}\n"
