"""A wheel of the project in an environment of its own, used from a folder that is in its way."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import NamedTuple, Self

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "workspaces", "images")
HOSTILE = ("flows", "tasks", "models")  # what users of Prefect call their own packages


class Installed(NamedTuple):
    """A wheel and the environment that it is installed in."""

    source: Path  # a copy of the checkout: a build writes there
    wheel: Path
    python: Path

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Return what `install_wheel` has left in a folder."""
        [wheel] = (folder / "wheels").glob("*.whl")
        return cls(folder / "source", wheel, folder / "environment" / "bin" / "python")

    def call(self, folder: Path, *command: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the environment in a folder, with nothing of this process's Python or Prefect set."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PREFECT_"))}
        program, *arguments = map(str, command)
        return subprocess.run(
            [self.python.with_name(program), *arguments],
            cwd=folder,
            env=kept | {"PREFECT_HOME": str(self.python.parents[1] / "prefect")} | environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a folder or of a source distribution, without a network."""
    _pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder, source)
    [wheel] = folder.glob("*.whl")
    return wheel


def install_wheel(folder: Path) -> None:
    """Build the wheel and install it; its dependencies are those of the running environment."""
    source = Path(shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=LEFT_OUT))
    wheel = build_wheel(source, folder / "wheels")
    environment = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    python = environment / "bin" / "python"
    _pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    site_packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    # A folder that a .pth file adds comes last, and its own .pth files, such as an editable install's, do not count.
    dependencies = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (site_packages / "dependencies.pth").write_text("\n".join(sorted(dependencies)))


def _pip(*arguments: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], check=True)


def names_in(wheel: Path) -> set[str]:
    """Return the names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def write_hostile_packages(folder: Path) -> Path:
    """Write packages with the names of our folders that cannot be imported; return their folder."""
    for name in HOSTILE:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise ImportError('{name} of the user was imported')\n")
    return folder
