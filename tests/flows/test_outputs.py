"""Whatever a command writes to is checked before any work: a new command is in these tables, or a test fails."""

import hashlib
import re
import shlex
from typing import get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.core import TyperGroup
from typer.main import get_command

from fineweb_mask.flows.cli import app
from fineweb_mask.flows.commands._common import WRONG_USAGE
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, write_manifest
from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.workspace import Workspace

FILES = {  # command: what it takes to be called, with what it reads in braces
    "init --output": "{corpus} --output",
    "select --output": "--input {vectors} --output",
    "sql --output": "{workspace} 'SELECT 1' --format csv --output",
    "train-quality --output": "--input {labels} --output",
}
FOLDERS = {
    "export --output": "{workspace} --format parquet --output",
    "run --workspace": "{recipe} --workspace",
    "run --set": "{recipe} --set materialize.output=",
    "compare --workspace": "{recipe} --workspace",
    "tune --workspace": "{recipe} --workspace",
}
LOST = "is in the (workspace|dataset)|overlap|is not a workspace|is read, too"
READ_ONLY = {  # places that are read, or changed as what they are, and settings that name no place
    *(f"{name} workspace" for name in "report explore why status gc push sql".split()),
    *(f"{name} recipe" for name in ("run", "compare", "tune")),
    *(f"{name} --set" for name in ("compare", "tune")),
    *(f"select --{name}-column" for name in ("id", "quality", "feature", "token")),
    *(f"train-quality --{name}-column" for name in ("text", "score")),
    *("verify dataset", "export dataset", "init source", "diff a", "diff b", "why documents", "push repository"),
    *(
        "select --input",
        "train-quality --input",
        "tune --target",
        "compare --target",
        "compare --variants",
        "gc --recipe",
        "compare --label-column",
    ),
    "export --tokenizer",
}
"""The rest of the parameters that take a text or a path are of `OTHER`."""
OTHER = re.compile(
    r"--(format|json|solver|algorithm|device|init|normalize|seed|select_ratio|lamb|lambs|by|"
    r"refit|until|shards|tokens|positive|set|memory-limit|revision)|"
    r"query|section"
)


def parameters(group, before=""):
    """Every parameter of every command that takes a text or a path."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from parameters(command, f"{before}{name} ")
            continue
        types = get_type_hints(command.callback)
        for one in command.params:
            if re.search(r"\b(str|Path)\b", str(types[one.name])):
                yield f"{before}{name} {one.opts[0]}"


def test_every_place_that_a_command_takes_is_known():
    found = set(parameters(get_command(app)))
    known = {*FILES, *FOLDERS, *READ_ONLY}
    assert known - found == set()
    assert {name for name in found - known if not OTHER.fullmatch(name.rpartition(" ")[2])} == set()


@pytest.fixture
def read(tmp_path, recipe):
    """What commands read, and a workspace of someone's run."""
    (tmp_path / "corpus").mkdir()
    rows = [{"id": str(row), "text": f"page {row} of an atlas " * 20, "score": float(row % 6)} for row in range(40)]
    for name in ("corpus/a", "labels"):
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"{name}.parquet")
    vectors = pa.table({"chunk_id": [1, 2], "quality_score": [0.5, 0.1], "feature_arr": [[1.0, 0.0], [0.0, 1.0]]})
    pq.write_table(vectors, tmp_path / "vectors.parquet")
    with Workspace(tmp_path / "workspace").in_use() as used:
        for name in ("documents/a.parquet", "dataset/README.md"):
            (used.root / name).parent.mkdir()
            (used.root / name).write_text("of a run")
    key = StageKey(stage="materialize", version=1, settings="s", inputs="i")
    write_manifest(used.dataset / PROVENANCE, key, [used.dataset / "README.md"], {"rows": 0})
    (used.root / ".lock").unlink()  # a check that runs may lock it again
    scorers = [{"kind": "column", "name": name, "column": "score"} for name in "ab"]
    settings = load_recipe(recipe, {"source": {"path": str(tmp_path / "corpus")}, "quality": {"scorers": scorers}})
    recipe.write_text(settings.model_dump_json(exclude_unset=True))
    names = ("corpus", "labels.parquet", "vectors.parquet", "recipe.yaml", "new", "workspace")
    return {name.partition(".")[0]: tmp_path / name for name in names}


def snapshot(folder):
    """Name, kind and content of all that is there."""
    return {
        str(path.relative_to(folder)): f"{path.lstat().st_mode} "
        + (hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
        for path in folder.rglob("*")
    }


def refused(invoke, call, read, place, *more):
    """Return why a command refuses a place; nothing is changed."""
    root = read["corpus"].parent
    command, option = call.split(" --")
    words = [word.format(**read) for word in shlex.split({**FILES, **FOLDERS}[call])]
    target = [f"{words.pop()}{place}"] if option == "set" else [str(place)]
    before = snapshot(root)
    done = invoke(*command.split(), *words, *target, *more)
    assert done.exit_code == WRONG_USAGE, (place, done.output, done.exception)
    assert snapshot(root) == before
    setting = {"set": "materialize.output", "workspace": "workspace"}.get(option, f"--{option}")
    message = done.stderr.splitlines()[-1]
    assert message.startswith(f"fineweb-mask: {setting}: "), message
    assert "Traceback" not in done.stderr
    return message


@pytest.mark.parametrize("call", FILES)
def test_a_file_is_never_written_where_something_would_be_lost(invoke, read, call):
    root, suffix = read["corpus"].parent, ".bin" if "train" in call else ".parquet"
    if "vectors" in FILES[call]:
        assert "is read, too" in refused(invoke, call, read, read["vectors"], "--force")
    if "corpus" in FILES[call]:
        assert "overlap" in refused(invoke, call, read, read["corpus"] / "a.parquet", "--force")
    (root / f"mine{suffix}").write_text("mine")
    said = refused(invoke, call, read, root / f"mine{suffix}")
    assert "exists: add --force to replace it, or name another file" in said
    assert re.search(LOST, refused(invoke, call, read, read["workspace"] / f"dataset/x{suffix}", "--force"))
    assert "must be a file of this machine" in refused(invoke, call, read, f"s3://bucket/x{suffix}", "--force")


@pytest.mark.parametrize("call", FOLDERS)
def test_a_folder_is_never_written_where_something_would_be_lost(invoke, read, call):
    root = read["corpus"].parent
    (root / "mine").mkdir()
    (root / "mine" / "thesis.txt").write_text("mine")
    most = 1 if call.split(maxsplit=1)[0] in {"compare", "tune"} else 3  # they check as `run` does
    lost = [read["workspace"] / "new", read["workspace"] / "dataset", read["workspace"] / "documents" / "x"][:most]
    if "recipe" in FOLDERS[call]:
        lost += [read["corpus"] / "new", read["corpus"], root][:most]
    for place in lost:
        assert re.search(LOST, refused(invoke, call, read, place))
    for place in ("mine", "mine/thesis.txt", "mine/thesis.txt/new")[:most]:
        refused(invoke, call, read, root / place)


def test_what_is_read_besides_the_source_is_no_place_for_a_dataset(invoke, read):
    earlier = read["corpus"].parent / "earlier"
    earlier.mkdir()
    (earlier / "a.parquet").hardlink_to(read["corpus"] / "a.parquet")
    for place in (earlier, earlier / "new"):
        assert "overlap" in refused(invoke, "run --set", read, place, "--set", f"ingest.against=[{earlier}]")


@pytest.mark.parametrize("call", ["init --output", "select --output"])
def test_a_file_is_replaced_if_asked_for_and_whole(invoke, read, call):
    mine = read["new"].with_suffix(".parquet")
    mine.write_text("mine")
    before = snapshot(mine.parent)
    words = FILES[call].format(**read).split()
    half = ["--select_ratio", "0.5", "--solver", "mean_field"] if "select" in call else []
    done = invoke(call.split(maxsplit=1)[0], *words, mine, "--force", *half)
    assert done.exit_code == 0, done.output
    after = snapshot(mine.parent)
    assert {name for name in after if after[name] != before.get(name)} == {mine.name}
