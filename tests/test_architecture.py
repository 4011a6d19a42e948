"""Rules that no other test sees: which module may import which, where files are, what the package is made of."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import TopologicalSorter
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ["models", "tasks", "flows"]  # from the ground up: a floor imports those before it
# The layers of each floor, from the ground up. A layer names modules and folders, relative to the floor.
# A module or folder imports itself and the layers before its own, nothing else: not even its own layer's other entries.
# "a.b" is a layer apart from the rest of folder "a".
LAYERS = {
    "models": [
        {"errors"},
        {"names", "urls"},
        {"schemas", "columns", "losses", "runtime", "settings.base", "words"},
        {"settings"},
        {"documents", "forward"},
        {"selection.rows"},
        {"selection.k_means", "selection.inputs", "selection.budget", "selection.shares"},
        {"selection.neighbours"},
        {"selection.metrics"},
        {"selection.measures", "selection.objective"},
        {"selection.solvers"},
        {"selection.selectors"},
        {"analysis", "dedup", "embedding", "pages", "quality", "selection"},
        {"witness"},
        {"filters"},
    ],
    "tasks": [
        {"storage", "processes"},
        {"workspace"},
        {"catalog"},
        {"source"},
        {"outputs"},
        {"reporting"},
        {"inference"},
        {"dataset"},
        {"selection", "train_quality"},
        {"witness"},
        {"comparison", "exclusion", "losses"},
        {"ingest", "dedup", "fit", "embed", "select", "materialize", "export", "explore"},
        {"score"},
        {"ledger"},
        {"report"},
        {"registry"},
    ],
    "flows": [
        {"recipe", "summary", "processes"},
        {"display"},
        {"cluster"},
        {"pipeline"},
        {"curate"},
        {"status"},
        {"ledger"},
        {"opened", "compare", "tune"},
        {"commands"},
        {"cli", "deployed"},
    ],
}
FILES = {floor: sorted((ROOT / floor).rglob("*.py")) for floor in FLOORS}
SOURCES = [(floor, file) for floor in FLOORS for file in FILES[floor]]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DISTRIBUTIONS = packages_distributions()
NO_VERBS = frozenset(
    "A All An Any Each Every Five Four How Many Most No One Several Some That The This Three Two "
    "What When Where Whether Which Who Whole Why".split()
)
OTHER_TESTS = {  # test files that are not named after one module, and what they are named after
    "tests/flows/pipeline/test_cells.py": "selection.py and tasks/selection/cells.py in blocks of alike documents",
    "tests/flows/test_any_recipe.py": "recipe.py, whatever stands in a recipe",
    "tests/flows/test_planted_cases.py": "what curate.py drops of planted cases",
    "tests/flows/test_keys.py": "cache keys of all stages",
    "tests/flows/test_outputs.py": "what commands/ may replace, in tasks/outputs.py",
    "tests/models/embedding/test_static.py": "the built-in encoder in load.py",
    "tests/models/quality/test_edu.py": "the kind edu in transformer.py",
    "tests/models/quality/test_perplexity.py": "the kind perplexity in transformer.py",
    "tests/models/selection/metrics/test_metrics.py": "all metrics, against each one's definition",
    "tests/tasks/dataset/test_card.py": "the card in materialize.py",
    "tests/tasks/dataset/test_columns.py": "rows and columns in partition.py",
    "tests/tasks/dedup/test_near_duplicates.py": "near-duplicates in duplicates.py",
    "tests/tasks/inference/test_scoring_pool.py": "the processes of scorers.py",
    "tests/tasks/source/test_broken_files.py": "ingest.py on hundreds of broken files",
    "tests/tasks/export/test_folder.py": "the files of export.py",
    "tests/tasks/export/test_order.py": "the order of export.py",
    "tests/tasks/export/test_tokens.py": "the tokens of export.py",
    "tests/tasks/source/test_hub.py": "sources on the Hugging Face hub, in discovery.py",
    "tests/tasks/test_one_pass.py": "score.py where a scorer is the encoder, too",
    "tests/tasks/test_steps.py": "progress of all stages",
}


@cache
def tree_of(file):
    return ast.parse(file.read_text())


@cache
def nodes(file):
    return tuple(ast.walk(tree_of(file)))


def names_imported_by(node, file):
    """Return the dotted names that an import statement or call takes, those of the project without `fineweb_mask.`."""
    names = set()
    if isinstance(node, ast.Import):
        names = {alias.name for alias in node.names}
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{file}: imports are absolute"
        names = {f"{node.module}.{alias.name}" for alias in node.names}
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
        names = {str(ast.literal_eval(node.args[0]))}
    return {name.removeprefix("fineweb_mask.") for name in names}


@cache
def imported(file):
    """Return the names that a file imports anywhere, also within functions and for type checkers only."""
    return frozenset().union(*(names_imported_by(node, file) for node in nodes(file)))


def packages(file):
    """Return the top-level packages that a file imports."""
    return {name.split(".")[0] for name in imported(file)}


def calls(file):
    return {ast.unparse(node.func) for node in nodes(file) if isinstance(node, ast.Call)}


def module_name(file):
    """Return a module's dotted name from its floor on; a package has its folder's."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_a_floor_imports_none_above_it_and_no_script():
    for floor, file in SOURCES:
        above = set(FLOORS[FLOORS.index(floor) + 1 :])
        assert not packages(file) & (above | {"tests", "benchmarks", "data_samples", "deployments"}), file


def layer_of(name):
    """Return the number and the entry of the layer that a dotted name is in: the longest entry that fits."""
    floor, _, inner = name.partition(".")
    found = [
        (len(entry), number, entry)
        for number, entries in enumerate(LAYERS[floor])
        for entry in entries
        if inner == entry or inner.startswith(f"{entry}.")
    ]
    assert found, f"{name} is in no layer: enter it in LAYERS"
    return max(found)[1:]


def test_a_layer_imports_only_the_layers_before_it():
    for floor, file in SOURCES:
        own = module_name(file)
        if own != floor:
            number, entry = layer_of(own)
            for name in (name for name in imported(file) if name.startswith(f"{floor}.")):
                other_number, other = layer_of(name)
                assert other == entry or other_number < number, f"{own} imports {name}"


@pytest.mark.parametrize("floor", FLOORS)
def test_no_modules_import_each_other_in_a_circle(floor):
    """Counted are the imports that run with the module: neither those in functions nor those for type checkers."""
    modules = {module_name(file): file for file in FILES[floor]}
    graph = {
        name: {
            target
            for node in tree_of(file).body
            for dotted in names_imported_by(node, file)
            for target in (dotted, dotted.rpartition(".")[0])  # a module, or a name in one
            if target in modules and target != name
        }
        for name, file in modules.items()
    }
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules) > 0


def test_tests_are_named_after_the_module_they_test():
    tests = {file for floor in FLOORS for file in (ROOT / "tests" / floor).rglob("test_*.py")}
    expected = {
        ROOT / "tests" / file.relative_to(ROOT).with_name(f"test_{file.name.lstrip('_')}")
        for floor in FLOORS
        for file in FILES[floor]
    }
    assert not {str(file.relative_to(ROOT)) for file in tests - expected} - OTHER_TESTS.keys()


SLOW = {"torch", "prefect", "scipy", "sklearn", "fasttext", "matplotlib", "sentence_transformers", "transformers"}


@pytest.mark.parametrize(
    ("modules", "left_out"),
    [
        ("flows.cli", SLOW | {"duckdb", "pyarrow", "numpy"}),
        ("flows.status.inspection", SLOW),
        ("models.settings", SLOW | {"pyarrow"}),
        ("models.selection.measures", {"torch", "prefect"}),
    ],
)
def test_what_programs_start_with_imports_nothing_slow(modules, left_out):
    code = f"import sys, fineweb_mask.{modules}; print(*{{name.partition('.')[0] for name in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not left_out.intersection(loaded.stdout.split())


def test_models_import_no_orchestration_no_sql_and_no_command():
    for file in FILES["models"]:
        assert not packages(file) & {"prefect", "duckdb", "typer", "click", "rich", "fsspec"}, file


def classes_asked_for(file):
    """Return the names of metrics' modules that `isinstance` and `issubclass` are called with in a file."""
    asked = {
        name.id
        for call in nodes(file)
        if isinstance(call, ast.Call) and ast.unparse(call.func) in {"isinstance", "issubclass"}
        for name in ast.walk(call.args[1])
        if isinstance(name, ast.Name)
    }
    metrics = "models.selection.metrics."
    return {name for name in imported(file) if name.startswith(metrics) and name.rpartition(".")[2] in asked}


def test_solvers_ask_a_metric_for_a_method_and_never_for_its_class():
    for file in (ROOT / "models" / "selection").rglob("*.py"):
        assert classes_asked_for(file) <= {
            "models.selection.metrics.base.Metric",
            "models.selection.metrics.base.Bounded",
        }, file


def test_nothing_prints_evaluates_or_unpickles():
    for _, file in SOURCES:
        assert not packages(file) & {"pickle", "dill", "cloudpickle", "joblib"}, file
        assert not calls(file) & {"print", "eval", "exec", "compile", "torch.load", "yaml.load"}, file
        for call in (node for node in nodes(file) if isinstance(node, ast.Call)):
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            assert given.get("trust_remote_code", "False") == "False", ast.unparse(call)
            assert given.get("allow_pickle", "False") == "False", ast.unparse(call)
            if ast.unparse(call.func).endswith(".from_pretrained"):
                assert "trust_remote_code" in given, ast.unparse(call)


def test_parquet_is_read_with_its_checksums():
    """Through `tasks/storage/parquet.py`; the source's reader has errors of its own."""
    for _, file in SOURCES:
        if file.relative_to(ROOT).as_posix() not in {"tasks/storage/parquet.py", "tasks/source/opening.py"}:
            assert not calls(file) & {"pq.ParquetFile", "pq.read_table", "pq.read_schema", "pq.read_metadata"}, file


def test_every_package_imported_is_a_declared_dependency():
    extras = [
        line for name, lines in PROJECT["project"]["optional-dependencies"].items() for line in lines if name != "dev"
    ]
    required = [*PROJECT["project"]["dependencies"], *extras]  # a feature that needs an extra asks for it
    declared = {canonicalize_name(Requirement(line).name) for line in required}
    used = set().union(*(packages(file) for _, file in SOURCES))
    for name in used - set(FLOORS) - sys.stdlib_module_names - {"compression"}:  # new in 3.14
        found = DISTRIBUTIONS.get(name, [name])  # that of an extra may not be installed
        assert {canonicalize_name(one) for one in found} & declared, name


def test_the_installed_package_is_made_of_the_floors_the_recipes_and_the_sample():
    package = ROOT / "src" / "fineweb_mask"
    links = {path.name: path.resolve() for path in package.iterdir() if path.is_symlink()}
    assert links == {name: ROOT / name for name in (*FLOORS, "deployments", "data_samples")}


def test_every_folder_of_code_is_a_package():
    for _, file in SOURCES:
        assert (file.parent / "__init__.py").is_file(), file


def test_a_module_s_first_line_begins_with_a_verb_or_a_name_in_backticks():
    """The first word is capitalised, no article, pronoun or number, and not plural."""
    for _, file in SOURCES:
        first = (ast.get_docstring(tree_of(file)) or "").split(" ", maxsplit=1)[0]
        assert first not in NO_VERBS, file
        assert first.startswith("`") or re.fullmatch(r"[A-Z][a-z]*([a-rt-z]|ss)", first), (file, first)
