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

from flows.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ["models", "tasks", "flows"]  # from the ground up
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
    """Top-level names of all that a file imports, wherever in the file."""
    names = set()
    for node in nodes(file):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            names.add(node.module.split(".")[0])
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
            names.add(str(ast.literal_eval(node.args[0])).split(".")[0])
    return frozenset(names)


def calls(file):
    return {ast.unparse(node.func) for node in nodes(file) if isinstance(node, ast.Call)}


def test_every_floor_has_files():
    assert all(FILES.values())


@pytest.mark.parametrize(("floor", "file"), SOURCES)
def test_imports_never_point_up(floor, file):
    above = set(FLOORS[FLOORS.index(floor) + 1 :])
    assert not imported(file) & (above | {"tests", "benchmarks", "data_samples"})


@pytest.mark.parametrize(("floor", "file"), [source for source in SOURCES if source.values[0] == "models"])
def test_the_models_know_no_orchestration_no_sql_and_no_command(floor, file):
    assert not imported(file) & {"prefect", "duckdb", "typer", "click", "rich", "fsspec"}


@pytest.mark.parametrize(("floor", "file"), SOURCES)
def test_nothing_prints_evaluates_or_unpickles(floor, file):
    assert not imported(file) & {"pickle", "dill", "cloudpickle", "joblib"}
    assert not calls(file) & {"print", "eval", "exec", "torch.load"}


@pytest.mark.parametrize(("floor", "file"), SOURCES)
def test_every_package_imported_is_a_declared_dependency(floor, file):
    declared = {canonicalize_name(Requirement(line).name) for line in PROJECT["project"]["dependencies"]}
    for name in imported(file) - set(FLOORS) - sys.stdlib_module_names:
        assert {canonicalize_name(found) for found in DISTRIBUTIONS[name]} & declared, name


def test_there_are_recipes():
    assert [recipe for recipe in RECIPES if recipe.name == "sample.yaml"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.name)
def test_every_committed_recipe_loads_and_names_only_sections_of_the_settings(recipe):
    settings = load_recipe(recipe)
    assert set(yaml.safe_load(recipe.read_text())) <= set(type(settings).model_fields)


def test_the_packages_are_the_floors_and_match_pyproject():
    packages = sorted(init.parent.name for init in ROOT.glob("*/__init__.py"))
    assert packages == sorted(FLOORS)
    assert PROJECT["tool"]["setuptools"]["packages"]["find"]["include"] == ["flows*", "tasks*", "models*"]
    assert sorted(PROJECT["tool"]["mypy"]["packages"]) == sorted([*packages, "deployments"])


def test_every_folder_of_code_is_a_package():
    for files in FILES.values():
        for file in files:
            assert (file.parent / "__init__.py").is_file(), file


def test_the_command_points_at_a_function():
    module, _, function = PROJECT["project"]["scripts"]["fineweb-mask"].partition(":")
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
