"""The house rules: three floors, one direction; recipes and packages that agree with the code."""

import ast
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from fineweb_mask.flows.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ["models", "tasks", "flows"]  # from the ground up
# Rooms of each floor, from the ground up; a room is a folder or a module. One may import its own modules and the rooms
# of the lines above it, nothing else.
ROOMS = {
    "models": [
        {"errors", "urls", "schemas", "runtime", "settings.base"},
        {"settings"},
        {"documents", "forward"},
        {"selection.rows"},
        {"selection.neighbours", "selection.inputs", "selection.knee"},
        {"selection.metrics"},
        {"selection.objective"},
        {"selection.solvers"},
        {"analysis", "embedding", "quality", "selection"},
    ],
    "tasks": [
        {"storage"},
        {"workspace"},
        {"source", "reporting"},
        {"dataset", "inference"},
        {"selection"},
        {"ingest", "dedup", "fit", "score", "embed", "select", "materialize", "report", "train_quality"},
        {"score_embed"},
    ],
    "flows": [
        {"recipe", "lamb_values", "summary"},
        {"display"},
        {"engine"},
        {"curate"},
        {"stages", "sweep", "compare", "train_quality"},
        {"commands"},
        {"cli"},
    ],
}
MOST_MODULES = 12  # in a folder
FILES = {floor: sorted((ROOT / floor).rglob("*.py")) for floor in FLOORS}
SOURCES = [pytest.param(floor, file, id=str(file.relative_to(ROOT))) for floor in FLOORS for file in FILES[floor]]
RECIPES = sorted((ROOT / "deployments" / "recipes").glob("*.yaml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


DISTRIBUTIONS = packages_distributions()


@cache
def nodes(file):
    return tuple(ast.walk(ast.parse(file.read_text())))


@cache
def imported(file):
    """Dotted names of all that a file imports, wherever in the file; of this package without its own name."""
    names = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
            names.add(str(ast.literal_eval(node.args[0])))
    return frozenset(name.removeprefix("fineweb_mask.") for name in names)


def packages(file):
    """The top-level packages that a file imports."""
    return {name.split(".")[0] for name in imported(file)}


def calls(file):
    return {ast.unparse(node.func) for node in nodes(file) if isinstance(node, ast.Call)}


def test_every_floor_has_files():
    assert all(FILES.values())


@pytest.mark.parametrize(("floor", "file"), SOURCES)
def test_imports_never_point_up(floor, file):
    above = set(FLOORS[FLOORS.index(floor) + 1 :])
    assert not packages(file) & (above | {"tests", "benchmarks", "data_samples"})


def room_of(floor, name):
    """The line and the room that a dotted name of a floor is in: the longest that fits."""
    found = [
        (len(room), line, room)
        for line, rooms in enumerate(ROOMS[floor])
        for room in rooms
        if name == room or name.startswith(f"{room}.")
    ]
    assert found, f"{floor}.{name} is in no room: enter it in ROOMS"
    return max(found)[1:]


@pytest.mark.parametrize(("floor", "file"), SOURCES)
def test_rooms_import_only_what_they_stand_on(floor, file):
    own = ".".join(file.relative_to(ROOT / floor).with_suffix("").parts).removesuffix("__init__").strip(".")
    if not own:
        return
    line, room = room_of(floor, own)
    for name in imported(file):
        if name.startswith(f"{floor}."):
            there, other = room_of(floor, name.removeprefix(f"{floor}."))
            assert other == room or there < line, f"{floor}.{own} imports {name}"


def test_no_folder_holds_more_modules_than_one_looks_over():
    for floor in FLOORS:
        for folder in {file.parent for file in FILES[floor]}:
            modules = [file for file in folder.glob("*.py") if file.name != "__init__.py"]
            assert len(modules) <= MOST_MODULES, folder


@pytest.mark.parametrize(("floor", "file"), [source for source in SOURCES if source.values[0] == "models"])
def test_the_models_know_no_orchestration_no_sql_and_no_command(floor, file):
    assert not packages(file) & {"prefect", "duckdb", "typer", "click", "rich", "fsspec"}


@pytest.mark.parametrize(("floor", "file"), SOURCES)
def test_nothing_prints_evaluates_or_unpickles(floor, file):
    assert not packages(file) & {"pickle", "dill", "cloudpickle", "joblib"}
    assert not calls(file) & {"print", "eval", "exec", "torch.load"}


@pytest.mark.parametrize(("floor", "file"), SOURCES)
def test_every_package_imported_is_a_declared_dependency(floor, file):
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["project"]["dependencies"]}
    for name in packages(file) - set(FLOORS) - sys.stdlib_module_names:
        assert {canonicalize_name(found) for found in DISTRIBUTIONS[name]} & declared, name


def test_there_are_recipes():
    assert [recipe for recipe in RECIPES if recipe.name == "sample.yaml"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_every_committed_recipe_loads_and_names_only_sections_of_the_settings(recipe):
    settings = load_recipe(recipe)
    assert set(yaml.safe_load(recipe.read_text())) <= set(type(settings).model_fields)


def test_the_installed_package_is_made_of_the_floors_and_the_recipes():
    package = ROOT / "src" / "fineweb_mask"
    links = {path.name: path.resolve() for path in package.iterdir() if path.is_symlink()}
    assert links == {**{floor: ROOT / floor for floor in FLOORS}, "recipes": ROOT / "deployments" / "recipes"}


def test_every_folder_of_code_is_a_package():
    for files in FILES.values():
        for file in files:
            assert (file.parent / "__init__.py").is_file(), file


def test_the_command_points_at_a_function():
    module, _, function = PROJECT["project"]["scripts"]["fineweb-mask"].partition(":")
    tree = ast.parse((ROOT / "src" / f"{module.replace('.', '/')}.py").read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
