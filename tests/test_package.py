"""The project as a user installs it: a wheel, run from a folder with packages named `flows`, `tasks` and `models`."""

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import fineweb_mask
from tests.wheel import HOSTILE, build_wheel, names_in, write_hostile_packages

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def folder(tmp_path):
    return write_hostile_packages(tmp_path / "user")


@pytest.mark.long
def test_the_wheel_holds_the_package_and_nothing_else(installed_wheel):
    names = names_in(installed_wheel.wheel)
    assert {name.split("/")[0] for name in names} == {
        "fineweb_mask",
        f"fineweb_mask-{version('fineweb-mask')}.dist-info",
    }
    code = {name for name in names if name.startswith("fineweb_mask/")}
    expected = {"__init__.py", "py.typed"}
    for link, pattern in {
        **dict.fromkeys(HOSTILE, "*.py"),
        "deployments/recipes": "*.[jy]*",
        "data_samples": "*.parquet",
        "tasks/reporting/templates": "*",
    }.items():
        real = (ROOT / "src" / "fineweb_mask" / link).resolve()
        expected |= {f"{link}/{file.relative_to(real).as_posix()}" for file in real.rglob(pattern)}
    assert code == {f"fineweb_mask/{name}" for name in expected}


@pytest.mark.long
def test_a_source_distribution_makes_the_same_wheel(installed_wheel, tmp_path):
    build = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    subprocess.run([sys.executable, "-c", build, tmp_path], cwd=installed_wheel.source, check=True, capture_output=True)
    [archive] = tmp_path.glob("*.tar.gz")
    assert names_in(build_wheel(archive, tmp_path / "wheels")) == names_in(installed_wheel.wheel)


@pytest.mark.long
def test_make_wheel_builds_the_same_wheel_and_leaves_nothing_else(installed_wheel):
    environment = (f"VENV={sys.prefix}", f"--old-file={sys.prefix}/.installed")  # which is not installed again
    stale = installed_wheel.source / "build" / "lib" / "fineweb_mask" / "gone.py"
    stale.parent.mkdir(parents=True, exist_ok=True)
    stale.write_text("")
    subprocess.run(["make", "wheel", *environment], cwd=installed_wheel.source, check=True, capture_output=True)
    [wheel] = (installed_wheel.source / "dist").glob("*.whl")
    assert names_in(wheel) == names_in(installed_wheel.wheel)
    assert not (installed_wheel.source / "build").exists()


@pytest.mark.long
def test_the_command_prints_its_version_and_has_the_sample_without_a_checkout(installed_wheel, folder):
    """Whole runs of the wheel are in tests/integration/test_own_file.py."""
    done = installed_wheel.call(folder, "fineweb-mask", "--version")
    assert done.stdout.strip() == version("fineweb-mask"), done.stderr
    done = installed_wheel.call(folder, "fineweb-mask", "run", "sample", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in folder.iterdir()} == set(HOSTILE)


@pytest.mark.long
def test_the_public_names_work_from_a_user_s_folder(installed_wheel, folder):
    script = """
import sys, fineweb_mask
assert not {"torch", "prefect", "duckdb", "numpy"} & sys.modules.keys()
import numpy as np
random = np.random.default_rng(0)
chosen = fineweb_mask.select(random.normal(size=(50, 8)), random.random(50), fineweb_mask.SelectionSettings())
print(fineweb_mask.__file__, len(chosen.indices), fineweb_mask.load_recipe("fineweb").workspace)
"""
    done = installed_wheel.call(folder, "python", "-c", script)
    assert done.returncode == 0, done.stderr
    path, *rest = done.stdout.split()
    assert Path(path).is_relative_to(installed_wheel.python.parents[1])
    assert rest == ["5", "workspaces/fineweb"]


def test_every_public_name_is_found_and_known_to_type_checkers():
    tree = ast.parse(Path(fineweb_mask.__file__).read_text())
    [typed] = [node for node in tree.body if isinstance(node, ast.If)]
    nodes = [node for node in ast.walk(typed) if isinstance(node, ast.ImportFrom)]
    imported = {name.asname or name.name for node in nodes for name in node.names}
    assert {*imported, "__version__"} == set(fineweb_mask.__all__) == set(dir(fineweb_mask))
    assert all(getattr(fineweb_mask, name) is not None for name in fineweb_mask.__all__)
    with pytest.raises(AttributeError, match="module 'fineweb_mask' has no attribute 'selekt'"):
        _ = fineweb_mask.selekt
