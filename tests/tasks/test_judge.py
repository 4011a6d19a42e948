"""A shard is embedded for the job that reads its vectors: the same output, and no vectors are left."""

from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.embedding.static import TokenVectorEncoder
from fineweb_mask.models.settings import PipelineSelectionSettings
from fineweb_mask.tasks import embed
from fineweb_mask.tasks.judge import JudgeJob, judge
from fineweb_mask.tasks.select import SelectJob, select
from fineweb_mask.tasks.selection.corpus.learning import (
    KeepRuleJob,
    LearnJob,
    MeasureJob,
    SampleJob,
    draw_sample,
    keep_rule,
    learn_rule,
    measure,
)
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import ShardFiles
from tests.tasks.jobs import embed_job

SETTINGS = PipelineSelectionSettings(
    near_duplicates={"weight": 0}, scope="global", select_ratio=0.25, metrics="pairwise", passes=1, device="cpu"
)


class Work(NamedTuple):
    """The jobs on the second shard that read its vectors, and what they wrote by stored ones."""

    jobs: dict[str, Any]
    written: dict[str, dict[str, bytes]]  # by job, and by path
    embed: embed.EmbedJob
    built: Any

    def without_vectors(self, name: str) -> JudgeJob:
        """Return the job that embeds the shard for one of these jobs, whose output is deleted."""
        for path in self.jobs[name].paths():
            path.unlink()
        return JudgeJob(root=self.embed.root, embed=self.embed, work=unstored(self.jobs[name], self.embed.unstored))


def unstored(job: Any, vectors: StageFile) -> Any:
    if isinstance(job, SelectJob):
        return job.model_copy(update={"shards": [job.shards[0].model_copy(update={"embeddings": vectors})]})
    return job.model_copy(update={"shard": job.shard.model_copy(update={"embeddings": vectors})})


@pytest.fixture(params=["float16", "int8", "float32"])
def work(copied: Any, request: pytest.FixtureRequest) -> Work:
    root = str(copied.workspace.root)
    given = copied.recipe.embedding.model_copy(update={"precision": request.param})
    embed_jobs = [
        embed_job(copied.workspace, file, copied.embedding_model, given).model_copy(update={"chunk_documents": 5})
        for file in copied.documents
    ]
    shards = [
        ShardFiles(documents=job.documents, scores=scores, embeddings=embed.embed(job), duplicates=shard.duplicates)
        for job, scores, shard in zip(embed_jobs, copied.scores, copied.selection_shards, strict=True)
    ]
    samples = [SampleJob(root=root, settings=SETTINGS, shard=shard, rate=0.8) for shard in shards]
    sampled = [draw_sample(job) for job in samples]
    first = LearnJob(root=root, settings=SETTINGS, number=0, samples=sampled)
    learned = learn_rule(first)
    passes = [MeasureJob(root=root, settings=SETTINGS, shard=shard, rule=learned) for shard in shards]
    tallies = tuple(measure(job) for job in passes)
    last = learn_rule(first.model_copy(update={"number": 1, "before": learned, "tallies": tallies}))
    kept = keep_rule(KeepRuleJob(root=root, settings=SETTINGS, models=["m"], learned=last))
    mask = SelectJob(root=root, settings=SETTINGS, shards=[shards[2]], rule=kept)
    select(mask)
    jobs = {"sample": samples[2], "measure": passes[2], "select": mask}
    written = {name: {path.name: path.read_bytes() for path in job.paths()} for name, job in jobs.items()}
    for shard in shards:
        copied.workspace.resolve(shard.embeddings).unlink()
    return Work(jobs, written, embed_jobs[2], copied)


def vectors_left(work: Work) -> list[str]:
    root = work.built.workspace.root
    return [
        path.relative_to(root).as_posix()
        for path in [*(root / "cache").rglob("*"), *(root / "embeddings").rglob("*.arrow")]
        if path.is_file() and (path.suffix == ".arrow" or path.name.endswith(".partial"))
    ]


@pytest.mark.parametrize("name", ["sample", "measure", "select"])
def test_the_output_is_that_of_stored_vectors_and_none_are_left(work: Work, name: str) -> None:
    job = work.without_vectors(name)
    assert job.embed.documents.name == "b"  # it repeats documents of another shard
    assert job.current() is None
    file = judge(job)
    assert not file.cached
    assert file.fingerprint == work.jobs[name].key.fingerprint == job.key.fingerprint
    assert file.stage == work.jobs[name].stage.name
    assert {path.name: path.read_bytes() for path in job.paths()} == work.written[name]
    assert not work.embed.output.exists()
    assert vectors_left(work) == []
    assert judge(job).cached


def test_a_mask_leaves_duplicates_out(work: Work) -> None:
    judge(work.without_vectors("select"))
    [path] = work.jobs["select"].paths()
    table = pq.read_table(path)
    assert table["block"].null_count == work.jobs["select"].current().details["excluded"]["duplicate"] == 2
    assert 0 < sum(table["selected"].to_pylist()) < 16


@pytest.mark.parametrize("name", ["sample", "measure", "select"])
def test_a_job_crosses_machines_as_json(work: Work, name: str) -> None:
    job = work.without_vectors(name)
    read = JudgeJob.model_validate_json(job.model_dump_json())
    assert type(read.work) is type(work.jobs[name])
    assert read.model_dump() == job.model_dump()
    assert (read.name, read.shard_names, read.key) == ("b", job.work.shard_names, work.jobs[name].key)


def test_a_killed_job_goes_on_where_it_was(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """Stands for the end of the process."""

    encode, encoded = TokenVectorEncoder.encode_tokens, []

    def killed_at_the_third(self: TokenVectorEncoder, tokens: Any) -> Any:
        encoded.append(len(tokens.lengths))
        if len(encoded) == 3:
            raise Killed
        return encode(self, tokens)

    job = work.without_vectors("select")
    monkeypatch.setattr(TokenVectorEncoder, "encode_tokens", killed_at_the_third)
    with pytest.raises(Killed):
        judge(job)
    assert job.current() is None
    judge(job)
    rows = job.embed.documents.rows
    assert encoded == [5, 5, 5, 5, rows - 15]  # two of the first run, the third twice, the fourth
    assert {path.name: path.read_bytes() for path in job.paths()} == work.written["select"]
    assert vectors_left(work) == []


def test_a_forced_job_is_built_again(work: Work) -> None:
    job = work.without_vectors("select")
    judge(job)
    assert judge(job).cached
    assert not judge(job.model_copy(update={"force": True})).cached


def test_the_model_alone_tells_the_dimensions(copied: Any) -> None:
    job = embed_job(copied.workspace, copied.documents[0], copied.embedding_model, copied.recipe.embedding)
    assert embed.dimensions_of(job) == 16
