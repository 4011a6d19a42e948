"""`benchmarks/walk.py`: which functions of a package are called, in which order, and from how deep."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.walk import Walk, noted, print_walk

OUTER = """
def start(pool, work, model):
    return pool.submit(work, model).result()
"""
INNER = """
class Settings:
    size = 1

def work(model):
    return sum(step(model) for _ in range(2))

def step(model):
    return model.predict()

def never():
    pass
"""


class Model:
    """A library's, not of the package."""

    def predict(self) -> int:
        return 1


def load(folder: Path, name: str, text: str) -> Any:
    path = folder / f"{name}.py"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_calls_are_recorded_in_order_and_stacks_go_through_a_pool(tmp_path: Path, capsys: Any) -> None:
    walk = Walk(tmp_path)
    predict, submit = Model.predict, ThreadPoolExecutor.submit
    with noted("predict", Model, walk), walk.traced(), ThreadPoolExecutor(1) as pool:
        outer = load(tmp_path, "flows/outer", OUTER)
        inner = load(tmp_path, "inner", INNER)
        assert outer.start(pool, inner.work, Model()) == 2
    assert walk.modules == {"inner": ["Settings", "work", "<genexpr>", "step"], "flows.outer": ["start"]}
    stack = ["flows.outer.start", "inner.work", "inner.work.<locals>.<genexpr>", "inner.step"]
    assert [".".join(frame) for frame in walk.deepest] == stack
    assert (Model.predict, ThreadPoolExecutor.submit) == (predict, submit)
    print_walk(walk, functions=True)
    assert capsys.readouterr().out.splitlines()[-1] == "2 modules, 5 functions, 4 frames"
