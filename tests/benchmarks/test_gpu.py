"""The measurements for a GPU, small and on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WITHOUT = ("prefect", "duckdb", "obstore", "fasttext", "ray")
"""A machine with a GPU may have torch and little else."""
START = f"import sys; sys.modules.update(dict.fromkeys({WITHOUT})); from benchmarks.gpu import main; main()"


@pytest.fixture(scope="module")
def gpu():
    """The module, which imports what takes long, and so would every process that collects this test."""
    from benchmarks import gpu

    return gpu


def call(*arguments):
    command = [sys.executable, "-c", START, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.long
def test_all_is_measured_without_what_only_the_pipeline_needs_and_none_twice(gpu, tmp_path):
    done = call("--output", tmp_path, "--small")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "nothing is left"
    lines = [json.loads(line) for line in (tmp_path / "measured.jsonl").read_text().splitlines()]
    ended = {line["key"]: line["state"] for line in lines if line["state"] != gpu.STARTED}
    assert set(ended) == {"device", *(one.key for one in gpu.measurements(gpu.SMALL))}
    assert set(ended.values()) == {gpu.DONE}, [line for line in lines if line["state"] == gpu.FAILED]
    agree = [line["found"] for line in lines if line["key"].startswith("agree") and "found" in line]
    assert all(found["same bits twice"] for found in agree)

    page = gpu.page(gpu.SMALL, gpu.Results(tmp_path))
    assert "on one CPU" in page
    assert "not measured" not in page


@pytest.fixture
def measured(gpu, monkeypatch):
    """Measurements of which one fails, and how often each was tried."""
    tried = []

    def measure(name):
        tried.append(name)
        if name == "bad":
            raise ValueError("cannot")
        return {"s": 1.0}

    made = [gpu.Measurement("block", name, 60, lambda name=name: measure(name)) for name in ("good", "bad", "last")]
    monkeypatch.setattr(gpu, "measurements", lambda _size: iter(made))
    return tried


def test_a_failure_is_kept_with_its_reason_and_the_others_are_measured(gpu, tmp_path, measured):
    results = gpu.Results(tmp_path)
    assert gpu.run(gpu.SMALL, results, [], 9) == []
    assert gpu.run(gpu.SMALL, gpu.Results(tmp_path), [], 9) == []
    assert measured == ["good", "bad", "last"]
    assert "ValueError: cannot" in gpu.page(gpu.SMALL, results)


def test_what_never_ended_twice_is_not_tried_again(gpu, tmp_path, measured):
    results = gpu.Results(tmp_path)
    with results.path.open("a") as file:
        for _ in range(gpu.MOST_TRIES):
            results.add(file, "block: good", gpu.STARTED)
    gpu.run(gpu.SMALL, gpu.Results(tmp_path), [], 9)
    assert measured == ["bad", "last"]
