"""A run ends after the stage that it is to stop after."""

from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.curate import pipeline
from fineweb_mask.flows.pipeline.run import ReachedError, Share
from fineweb_mask.flows.recipe import Until
from tests.flows.pipeline.run_here import RunHere, recipe_of, text_of

NEW = {  # kinds of jobs that a run builds which another, one stage shorter, has not built
    "ingest": {"ingest"},
    "dedup": {"dedup"},
    "score": {"fit_statistics", "fit_encoder", "score"},
    "embed": {"embed"},
    "select": {"losses", "select"},
    "materialize": {"partition", "materialize"},
    "export": {"export"},
    "report": {"witness", "report"},
}


def test_a_run_ends_after_the_stage_that_it_stops_after_and_the_next_goes_on(tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    for number, name in enumerate("ab"):
        rows = [{"text": text_of(number, row), "id": f"{name}{row}"} for row in range(30)]
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / f"corpus/{name}.parquet")
    output = {"layout": "flat", "export": [{"format": "parquet"}]}
    settings = recipe_of(tmp_path / "workspace", tmp_path / "corpus", materialize=output)
    assert tuple(NEW) == get_args(Until)
    for stage, kinds in NEW.items():
        run = RunHere(settings, until=stage)
        if stage == "report":
            pipeline(run)
        else:
            with pytest.raises(ReachedError, match=f"^{stage}$"):
                pipeline(run)
        assert {name.partition(" ")[0] for name in run.built} == kinds
    run = RunHere(settings)
    pipeline(run)
    assert run.built == []


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "1/2/3", "a/b"])
def test_a_wrong_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"a share is I/N, such as 2/8"):
        Share.parse(text)
