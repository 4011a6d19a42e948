"""CONTRIBUTING.md: its examples run, and its tree is the repository's."""

import re
from functools import partial
from pathlib import Path

import pytest

from fineweb_mask.models.quality import registry
from fineweb_mask.models.settings.selectors import registry as selectors

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
EXAMPLES = re.findall(r"^## Write your own ([\w ]+)\n.*?^```python\n(.*?)^```\n", TEXT, re.MULTILINE | re.DOTALL)


def restore(table, before):
    table.clear()
    table.update(before)


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in EXAMPLES])
def test_an_example_runs(code, request):
    for table in (registry.SCORERS, selectors.SELECTORS):  # what it adds is gone after the test
        request.addfinalizer(partial(restore, table, dict(table)))
    line = TEXT[: TEXT.index(code)].count("\n")
    exec(compile("\n" * line + code, ROOT / "CONTRIBUTING.md", "exec"), {})


def test_there_is_an_example_of_everything_that_can_be_added():
    assert [name for name, _ in EXAMPLES] == ["scorer", "diversity metric", "selector", "stage"]
    assert all(len(code.splitlines()) <= 45 for _, code in EXAMPLES)


def test_the_tree_names_every_folder_and_every_stage():
    tree = TEXT.partition("```\n")[2].partition("```")[0]
    named, floor = set(), ""
    for line in tree.splitlines():
        names = re.split(r"  +", line.strip())[0].split(", ")
        if not line.startswith(" "):
            floor = names[0]
            named |= set(names)
        else:
            named |= {floor + name for name in names}
    assert all((ROOT / name).exists() for name in named), named
    for floor in ("flows", "tasks", "models"):
        folders = {path.parent for path in (ROOT / floor).glob("*/__init__.py")}
        assert {f"{folder.relative_to(ROOT)}/" for folder in folders} <= named
    assert {f"tasks/{path.name}" for path in (ROOT / "tasks").glob("*.py")} <= named | {"tasks/__init__.py"}


def test_every_name_is_in_the_file_it_is_said_to_be_in():
    text = " ".join(TEXT.split())
    named = re.findall(r"`(\w+)` \(`([\w/]+\.py)`\)", text)
    assert len(named) >= 4
    for name, file in named:
        assert re.search(rf"\b{name}\b", (ROOT / file).read_text()), f"{name} is not in {file}"
    for path in re.findall(r"`((?:flows|tasks|models|tests)/[\w/]*(?:\.py)?)`", text):
        assert (ROOT / path).exists(), path
