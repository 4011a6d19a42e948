"""The stages tell how far they are within a shard."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.runtime import progress
from fineweb_mask.models.runtime.progress import Step, reporting_to
from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.inference.scoring_pool import ScoringProcesses


def test_every_document_of_a_stage_is_told(
    recipe: PipelineSettings, pipeline: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    heard: dict[str, list[Step]] = defaultdict(list)

    def hear(share: float, steps: tuple[Step, ...]) -> None:
        assert 0 <= share <= 1
        for step in steps:
            assert 0 <= step.done <= step.total
            heard[step.what].append(step)

    with reporting_to(hear):
        built = pipeline(recipe.model_copy(update={"workspace": str(tmp_path / "workspace")}))
    ended = [step.total for step in heard["documents"] if step.done == step.total]
    read = [file.details["rows_in"] for file in built.documents if file.details["rows_in"] > 1]
    kept = [file.rows for file in built.documents if file.rows > 1]
    assert sorted(ended) == sorted([*read, *kept, *kept])  # ingest, score, embed
    fitted_on = sum(file.rows for file in built.documents)
    assert heard["documents of the sample"][-1] == Step("documents of the sample", fitted_on, fitted_on)
    assert heard["documents written"][-1] == Step("documents written", built.counts.selected, built.counts.selected)


@pytest.fixture
def scored(built: Any, tmp_path: Path) -> Path:
    texts = [f"orbit {row}" for row in range(6_000)]
    table = pa.table({"row": pa.array(range(len(texts)), pa.uint32()), "text": texts})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=1_500)
    return tmp_path / "in.parquet"


@pytest.fixture
def processes(built: Any) -> Any:
    [model] = built.models
    placed = model.model_copy(update={"path": str(built.workspace.root / model.path)})
    started = ScoringProcesses([placed], 2)
    yield started
    started.close()


def test_scoring_in_processes_is_told_and_hears_a_request_to_stop(
    processes: ScoringProcesses, scored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    heard: list[tuple[float, tuple[Step, ...]]] = []
    with reporting_to(lambda share, steps: heard.append((share, steps))):
        expected = processes.score(scored, (0.0, 0.5))
    assert heard[-1] == (0.5, (Step("documents scored", 6_000, 6_000),))
    assert len({share for share, _ in heard}) > 2

    def stop_on_the_way(share: float, steps: tuple[Step, ...]) -> None:
        request_stop()

    try:
        with reporting_to(stop_on_the_way), pytest.raises(StoppedError):
            processes.score(scored)
    finally:
        clear_stop_request()
    assert np.array_equal(processes.score(scored), expected)  # the workers are as good as before


def test_scoring_ends_where_the_processes_are_closed_meanwhile(processes: ScoringProcesses, scored: Path) -> None:
    processes.close()
    with pytest.raises(OSError, match="closed"):
        processes.score(scored)
