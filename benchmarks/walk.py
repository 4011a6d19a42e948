"""Trace a run of one shard of the sample, and print the modules of ours that it walks through, in order of first call.

    python -m benchmarks.walk           # the modules, and the frames between the command and fastText
    python -m benchmarks.walk --list    # also the functions of each module
    python -m benchmarks.walk --json

`fineweb-mask run` runs in this process, on a copy of one source file and in a new workspace, with all threads traced. A
module counts if a function or a class body of it ran; a function counts once for its module and name. Frames are those
of the deepest stack of ours above fastText's prediction. A function that a thread pool runs has the frames of the one
that submitted it above its own. Processes that the run starts are not traced; for so few documents there are none
of ours. It takes a minute of the processor.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

ROOT = Path(__file__).resolve().parents[1]
RECIPE = ROOT / "deployments" / "recipes" / "sample.yaml"
SHARD = ROOT / "data_samples" / "corpus" / "CC-MAIN-2024-10_00000.parquet"


class Walk:
    """What was called of the modules below a folder.

    Parameters
    ----------
    folder
        The folder of the package; modules are named from it on.

    Attributes
    ----------
    functions
        Module and name of each function, in order of first call.
    deepest
        The deepest stack that `note_stack` saw: module and qualified name of each frame, the outermost first.
    """

    def __init__(self, folder: Path) -> None:
        self.functions: dict[tuple[str, str], None] = {}
        self.deepest: list[tuple[str, str]] = []
        self._folder = f"{folder}/"
        self._above = threading.local()  # `frames`: those of the thread that submitted what this one runs

    @property
    def modules(self) -> dict[str, list[str]]:
        """The functions of each module, both in order of first call."""
        found: dict[str, list[str]] = {}
        for module, function in self.functions:
            found.setdefault(module, []).append(function)
        return found

    def note_stack(self) -> None:
        """Keep the stack of the caller if it is the deepest."""
        self.deepest = max(self.deepest, self._stack(sys._getframe(1)), key=len)

    @contextmanager
    def traced(self) -> Iterator[None]:
        """Record every call in the block: of this thread, and of threads that it starts."""
        submit, before = ThreadPoolExecutor.submit, sys.gettrace()

        def submit_below(
            pool: ThreadPoolExecutor, function: Callable[P, R], /, *given: P.args, **named: P.kwargs
        ) -> Future[R]:
            above = self._stack(sys._getframe(1))

            def run() -> R:
                self._above.frames = above
                try:
                    return function(*given, **named)
                finally:
                    self._above.frames = []

            return submit(pool, run)

        ThreadPoolExecutor.submit = submit_below  # type: ignore[method-assign, assignment]
        threading.settrace(self._on_call)
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)  # type: ignore[arg-type]
            ThreadPoolExecutor.submit = submit  # type: ignore[method-assign]

    def _on_call(self, frame: FrameType, _event: str, _argument: object) -> None:
        """Record a call; returning None leaves the lines of the function untraced."""
        code = frame.f_code
        if code.co_filename.startswith(self._folder) and code.co_name != "<module>":
            self.functions.setdefault((self._module(frame), code.co_name))

    def _module(self, frame: FrameType) -> str:
        return frame.f_code.co_filename.removeprefix(self._folder).removesuffix(".py").replace("/", ".")

    def _stack(self, frame: FrameType | None) -> list[tuple[str, str]]:
        frames = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(self._folder):
                frames.append((self._module(frame), frame.f_code.co_qualname))
            frame = frame.f_back
        return getattr(self._above, "frames", []) + frames[::-1]


@contextmanager
def noted(method: str, of: type, walk: Walk) -> Iterator[None]:
    """Note the stack above every call of a class's method."""
    original = getattr(of, method)

    def called(*given: object) -> object:
        walk.note_stack()
        return original(*given)

    setattr(of, method, called)
    try:
        yield
    finally:
        setattr(of, method, original)


def walk_sample() -> Walk:
    """Return the walk of a run of one shard of the sample."""
    import fasttext_pybind

    import fineweb_mask
    from fineweb_mask.flows.cli import app

    walk = Walk(Path(fineweb_mask.__file__).parent)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        source.mkdir()
        shutil.copy(SHARD, source)
        command = ["run", str(RECIPE), "--json", "--workspace", f"{folder}/workspace", "--set", f"source.path={source}"]
        with (
            redirect_stdout(sys.stderr),
            noted("multilinePredict", fasttext_pybind.fasttext, walk),
            noted("predict", fasttext_pybind.fasttext, walk),
            walk.traced(),
        ):
            if code := app(command, standalone_mode=False):
                sys.exit(code)
    return walk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the functions of each module")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    walk = walk_sample()
    if arguments.json:
        counts = {"modules": len(walk.modules), "functions": len(walk.functions), "frames": len(walk.deepest)}
        print(json.dumps({"counts": counts, "modules": walk.modules, "frames": walk.deepest}))
    else:
        print_walk(walk, functions=arguments.list)
    sys.stdout.flush()
    os._exit(0)  # as the command does: DuckDB would report what it takes for leaks


def print_walk(walk: Walk, *, functions: bool) -> None:
    """Print the modules, with their functions if asked, and the deepest stack."""
    for number, (module, called) in enumerate(walk.modules.items(), 1):
        print(f"{number:>4}  {module}  {len(called)}")
        for function in called if functions else []:
            print(f"        {function}")
    print("\nframes between the command and fastText, the outermost first")
    for number, (module, function) in enumerate(walk.deepest, 1):
        print(f"{number:>4}  {module}.{function}")
    print(f"\n{len(walk.modules):,} modules, {len(walk.functions):,} functions, {len(walk.deepest)} frames")


if __name__ == "__main__":
    main()
