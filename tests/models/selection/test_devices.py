"""What other devices and block sizes must give: the same answers as the plain case."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fineweb_mask.models.selection import SelectionSettings, select
from fineweb_mask.models.selection.neighbours import Neighbours, nearest
from fineweb_mask.models.selection.objective import METRICS
from fineweb_mask.models.selection.rows import Rows


@pytest.mark.parametrize("metric", METRICS)
def test_blocks_and_copies_do_not_change_the_answer(metric, corpus, monkeypatch):
    features, quality = corpus
    chosen = SelectionSettings(metrics=metric, select_ratio=0.1, lamb=0.3)
    whole = select(features.astype(np.float16), quality, chosen)
    monkeypatch.setattr("fineweb_mask.models.selection.rows.COPY_BYTES", {"cpu": 0})
    monkeypatch.setattr("fineweb_mask.models.selection.rows.BLOCK_BYTES", {"cpu": 4 * 16 * 37})
    monkeypatch.setattr("fineweb_mask.models.selection.neighbours.PRODUCT_ELEMENTS", {"cpu": 70 * 70})
    in_blocks = select(features.astype(np.float16), quality, chosen)
    assert in_blocks.objective == pytest.approx(whole.objective, abs=0.01)
    assert len(np.intersect1d(whole.indices, in_blocks.indices)) > 0.8 * len(whole.indices)


def test_float16_rows_are_never_copied_whole_when_large(corpus, monkeypatch):
    monkeypatch.setattr("fineweb_mask.models.selection.rows.COPY_BYTES", {"cpu": 0})
    stored = torch.from_numpy(corpus[0]).half()
    rows = Rows(stored, torch.ones(len(stored)))
    assert rows._stored.data_ptr() == stored.data_ptr()


@pytest.mark.parametrize("side", [7, 20, 1000])
def test_neighbours_are_the_exact_nearest(side, corpus, monkeypatch):
    monkeypatch.setattr("fineweb_mask.models.selection.neighbours.PRODUCT_ELEMENTS", {"cpu": side * side})
    x = torch.from_numpy(corpus[0][:150])
    found = nearest(Rows(x), 12)
    similarity = (x @ x.T).clamp(min=0)
    expected = similarity.topk(12, dim=1).values.T
    torch.testing.assert_close(found.similarity, expected, rtol=0, atol=1e-5)
    gathered = similarity.gather(1, found.index.T).T
    torch.testing.assert_close(gathered, expected, rtol=0, atol=1e-5)
    assert (found.index[0] == torch.arange(150)).all()


def test_sums_over_sorted_segments_equal_scattered_ones():
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(0, 30, (6, 30), generator=generator)
    values = torch.rand((6, 30), generator=generator)
    graph = Neighbours(index, values)
    order, lengths = graph._segments
    by_segments = torch.segment_reduce(values.reshape(-1)[order], "sum", lengths=lengths)
    torch.testing.assert_close(graph.sum_back(values), by_segments)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("metric", METRICS)
def test_cuda_is_deterministic_and_as_good_as_the_cpu(metric, corpus):
    chosen = SelectionSettings(metrics=metric)
    first, second = (select(*corpus, chosen, device="cuda") for _ in range(2))
    assert first.indices.tobytes() == second.indices.tobytes()
    assert first.objective == pytest.approx(select(*corpus, chosen).objective, abs=0.01)


def test_gpu_benchmark_runs_small_on_the_cpu():
    root = Path(__file__).parents[3]
    command = [sys.executable, "-m", "benchmarks.selection_gpu", "--smoke"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("mean_field") == 3
    assert done.stdout.count("policy_gradient") == 3


def test_disf_annealed_in_fewer_directions_is_nearly_as_good(monkeypatch):
    random = np.random.default_rng(0)
    features = random.normal(size=(300, 48)) * (1 / np.sqrt(1 + np.arange(48)))
    quality = random.random(300)
    chosen = SelectionSettings(metrics="disf", lamb=0.2, select_ratio=0.2, normalize="none")
    monkeypatch.setattr(
        "fineweb_mask.models.selection.solvers.mean_field.CANDIDATES", 0
    )  # no greedy picks that would hide it
    whole = select(features, quality, chosen)
    monkeypatch.setattr("fineweb_mask.models.selection.solvers.mean_field.LARGE", 1)
    monkeypatch.setattr("fineweb_mask.models.selection.solvers.mean_field.DIRECTIONS", 16)
    reduced = select(features, quality, chosen)
    assert reduced.objective > whole.random_objective + 0.98 * (whole.objective - whole.random_objective)
    assert reduced.upper_bound >= max(whole.objective, reduced.objective) - 1e-5
