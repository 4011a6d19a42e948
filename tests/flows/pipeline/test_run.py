"""A run ends after the stage that it is to stop after; shares of the shards, as text."""

from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.curate import Until, pipeline
from fineweb_mask.flows.pipeline.run import ReachedError, Share
from fineweb_mask.models.settings import (
    EmbeddingSettings,
    IngestSettings,
    MaterializeSettings,
    PipelineSelectionSettings,
    PipelineSettings,
    SourceSettings,
)
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.models.settings.quality import ColumnScorerSettings, QualitySettings
from tests.flows.pipeline.run_here import RunHere

NEW = {  # kinds of jobs that a run builds which another, one stage shorter, has not built
    "ingest": {"ingest"},
    "score": {"fit_statistics", "fit_encoder", "score"},
    "embed": {"embed"},
    "dedup": {"hash", "repeats", "dedup"},
    "select": {"losses", "select"},
    "materialize": {"partition", "materialize"},
    "export": {"export"},
    "report": {"witness", "report"},
}


def test_a_run_ends_after_the_stage_that_it_stops_after_and_the_next_goes_on(tmp_path: Path) -> None:
    letters = np.random.default_rng(0).choice(list("abcdefgh"), (60, 40, 5))
    texts = [" ".join("".join(word) for word in text) for text in letters]
    (tmp_path / "corpus").mkdir()
    for name, own in (("a", texts[:30]), ("b", texts[30:])):
        pq.write_table(
            pa.table({"text": own, "id": [f"{name}{n}" for n in range(30)]}), tmp_path / f"corpus/{name}.parquet"
        )
    settings = PipelineSettings(
        workspace=str(tmp_path / "workspace"),
        source=SourceSettings(path=str(tmp_path / "corpus")),
        ingest=IngestSettings(min_chars=20),
        quality=QualitySettings(scorers=[ColumnScorerSettings(column="n_chars")]),
        embedding=EmbeddingSettings(static_dimensions=16),
        selection=PipelineSelectionSettings(select_ratio=0.5, solver="top_quality", device="cpu"),
        materialize=MaterializeSettings(layout="flat", export=[ExportSettings(format="parquet")]),
    )
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


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "1/0", "-1/3", "1/2/3", "a/b", "1.0/2"])
def test_a_wrong_share_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"a share is I/N, such as 2/8"):
        Share.parse(text)
