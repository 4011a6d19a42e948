"""The pipeline on the sample with every kind of scorer combined, and vectors from the same forward pass as a score."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.deployed import curate
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.models.settings.quality import NO_QUALITY
from fineweb_mask.tasks.workspace.job import BadShardError
from tests.integration.conftest import built

ROOT = Path(__file__).resolve().parents[2]
STAGES = {"ingest", "dedup", "fit", "score", "embed", "select", "materialize", "report"}


@pytest.fixture(scope="module")
def folder(save_regression_bert: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = pq.read_table(ROOT / "data_samples" / "corpus", columns=["text"])["text"].drop_null().to_pylist()[:500]
    return save_regression_bert(tmp_path_factory.mktemp("edu") / "model", texts)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 300 rows of two files of the sample."""
    corpus = tmp_path_factory.mktemp("corpus")
    for path in sorted((ROOT / "data_samples" / "corpus").glob("*.parquet"))[:2]:
        pq.write_table(pq.read_table(path).slice(0, 300), corpus / path.name)
    return corpus


@pytest.fixture
def run(server: None, folder: Path, corpus: Path) -> Callable[..., RunSummary]:
    def run(workspace: Path, *overrides: str, until: str | None = None) -> RunSummary:
        labels = ROOT / "data_samples" / "labels.parquet"
        scorers = (
            f"{{kind: fasttext, labels: {{path: {labels}}}}}",
            f"{{kind: edu, model: {folder}, weight: 2}}",
            "{kind: column, name: language_quality, column: language_score, weight: 0.5, missing: 0}",
        )
        given = (
            f"source.path={corpus}",
            f"quality.scorers=[{', '.join(scorers)}]",
            "embedding.model=from_quality",
            *overrides,
        )
        recipe = ROOT / "deployments" / "recipes" / "sample.yaml"
        return curate(load_recipe(recipe, given, str(workspace)), until=until)

    return run


@pytest.mark.long
def test_three_kinds_of_scorers_and_vectors_from_one_of_them(run, tmp_path):
    workspace = tmp_path / "workspace"
    summary = run(workspace)
    assert {stage.stage for stage in summary.stages} == STAGES
    assert summary.documents_in == summary.documents_kept + sum(summary.dropped.values()) + summary.not_selected
    shards = sorted(path.name.split(".")[0] for path in (workspace / "documents").glob("*.parquet"))
    for shard in shards:
        documents, scores, vectors = (
            pq.read_table(next((workspace / stage).glob(f"{shard}.*.parquet")))
            for stage in ("documents", "scores", "embeddings")
        )
        assert scores.column_names == ["row", "fasttext", "edu", "language_quality", "quality"]
        assert scores["row"].equals(documents["row"])
        assert vectors["row"].equals(documents["row"])
        assert vectors["embedding"].type.list_size == 32
        np.testing.assert_allclose(scores["language_quality"].to_numpy(), documents["language_score"].to_numpy(), 1e-6)
    dataset = pq.read_table(workspace / "dataset" / "data")
    assert {"fasttext", "edu", "language_quality", "quality"} <= set(dataset.column_names)

    lost = [
        path
        for stage, shard in zip(("scores", "embeddings"), shards, strict=True)
        for path in (workspace / stage).glob(f"{shard}.*.parquet")
    ]
    before = [path.read_bytes() for path in lost]
    for path in lost:
        path.unlink()
    assert built(run(workspace)) == {"score": 1, "embed": 1}
    assert [path.read_bytes() for path in lost] == before
    assert built(run(workspace, "quality.combine=minimum", until="score")) == {"score": len(shards)}


@pytest.mark.long
def test_when_no_file_can_be_scored_the_run_says_why(run, tmp_path, corpus):
    """The statistics are fitted again, on files that have all lost their scores since."""
    own = tmp_path / "corpus"
    own.mkdir()
    table = pq.read_table(next(iter(sorted(corpus.glob("*.parquet")))))

    def write(grades: list[int | None]) -> None:
        pq.write_table(table.append_column("grade", pa.array(grades, pa.int64())), own / "a.parquet")

    write(list(range(table.num_rows)))
    scorer = ("quality.scorers.2.column=grade", "quality.scorers.2.missing=null", f"source.path={own}")
    run(tmp_path / "workspace", *scorer, until="score")
    write([None] * table.num_rows)
    with pytest.raises(BadShardError, match=r"a, row 0: the score '\w+' is null or not finite in .* set `missing`"):
        run(tmp_path / "workspace", *scorer)


@pytest.mark.long
def test_without_any_score_no_model_is_needed_and_it_is_said_first(run, tmp_path):
    without = tmp_path / "without"
    summary = run(without, "quality.scorers=[]", "embedding.model=static", "selection.solver=greedy")
    assert summary.terms["mean_quality"] == 0
    scores = [pq.read_table(path) for path in sorted((without / "scores").rglob("*.parquet"))]
    assert [table.schema.names for table in scores] == [["row", "quality"]] * 2
    assert not np.concatenate([table["quality"].to_numpy() for table in scores]).any()
    text = (without / "reports" / "index.md").read_text().replace("\\", "")
    assert text.index(NO_QUALITY) < text.index("eligible documents are selected")
    assert "Quality: the median selected document" not in text
