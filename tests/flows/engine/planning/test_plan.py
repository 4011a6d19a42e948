"""The order of work: a shard waits for nothing but what it needs."""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from fineweb_mask.flows.engine.choices import PretrainedModels, Share
from fineweb_mask.flows.engine.garbage import collect_garbage
from fineweb_mask.flows.engine.planning.plan import Plan
from fineweb_mask.models.settings import (
    EmbeddingSettings,
    IngestSettings,
    PipelineSelectionSettings,
    PipelineSettings,
    SourceSettings,
)
from fineweb_mask.models.settings.quality import ColumnScorerSettings, QualitySettings
from fineweb_mask.tasks.catalog.query import open_catalog
from fineweb_mask.tasks.catalog.views import write_catalog
from fineweb_mask.tasks.dedup import repeats
from fineweb_mask.tasks.dedup.duplicates import no_duplicates
from fineweb_mask.tasks.embed import EmbeddingModel, EmbedJob
from fineweb_mask.tasks.fit import job as fit
from fineweb_mask.tasks.inference.scorers import resolve_model
from fineweb_mask.tasks.selection.groups import group_name, grouped
from fineweb_mask.tasks.source.discovery import SourceShard, discover
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.listing import update_index
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.engine.jobs_at_once import JobsAtOnce, write_shard
from tests.tasks.jobs import encoder_job, statistics_job

SCORER = ColumnScorerSettings(column="token_count")


class HeldJobs:
    """Holds the jobs that it is given until the test says that one is done."""

    def __init__(self):
        self.waiting = {}
        self.order = []
        self.expected = {}
        self.quarantined = {}
        self.at_once = 2

    def expect(self, stage, jobs):
        self.expected[stage] = self.expected.get(stage, 0) + jobs

    def finish(self):
        pass

    def add(self, job, on_done):
        name = f"{job.key.stage} {job.name}"
        assert name not in self.order, f"{name} was planned twice"
        self.waiting[name] = (job, on_done)
        self.order.append(name)

    def done(self, name, *, rows=10, bad=False):
        job, on_done = self.waiting.pop(name)
        stage = job.key.stage
        file = StageFile(stage=stage, name=job.name, path="x", rows=rows, bytes=1, fingerprint=name)
        file = file.model_copy(update={"details": {"statistics": {}}})
        on_done(None if bad else file)


def shard(name):
    return SourceShard(name=name, relative=name, url=name, format="parquet", bytes=1, fingerprint=name)


def planned(folder, names, *, model="given", fitted=False, exact_dedup="corpus", share=None, **selection):
    """Plan the work on shards of these names; what is fitted on the corpus may be there from an earlier run."""
    settings = PipelineSettings(
        workspace=str(folder),
        source=SourceSettings(path="corpus"),
        ingest=IngestSettings(exact_dedup=exact_dedup),
        quality=QualitySettings(scorers=[SCORER]),
        embedding=EmbeddingSettings(model=model),
        selection=PipelineSelectionSettings(**selection),
    )
    encoder = EmbeddingModel(path="/model", fingerprint="m") if model == "given" else None
    given = PretrainedModels(scorers={SCORER.name: resolve_model(SCORER)}, encoder=encoder)
    workspace = Workspace(folder)
    if fitted:
        for job in (
            statistics_job(workspace, [], [resolve_model(SCORER)], settings.quality),
            encoder_job(workspace, [], settings.embedding),
        ):
            write_manifest(job.manifest_path, job.key, [], {"statistics": {}})
    jobs = HeldJobs()
    found = Plan(jobs, workspace, settings, [shard(name) for name in names], given, share=share)
    found.prepare()
    return jobs, found


@pytest.fixture
def plan(tmp_path):
    return partial(planned, tmp_path)


def test_a_shard_does_not_wait_for_its_neighbours(plan):
    jobs, found = plan("abc", model="static", fitted=True)
    jobs.done("fit_statistics quality-statistics")
    jobs.done("fit_encoder encoder")
    jobs.done("ingest b")
    assert {"score b", "embed b"} <= jobs.waiting.keys()
    jobs.done("score b")
    jobs.done("embed b")
    assert [shard.name for shard in found.selectable] == ["b"]
    assert {"ingest a", "ingest c"} <= jobs.waiting.keys()
    assert jobs.expected == {"ingest": 3, "score": 3, "embed": 3, "dedup": 4, "fit": 2}


def test_a_given_encoder_embeds_before_anything_is_fitted(plan):
    jobs, _ = plan("abc")
    jobs.done("ingest c")
    assert set(jobs.waiting) == {"ingest a", "ingest b", "embed c", "hash c"}


def test_the_first_run_fits_on_its_sample_and_then_scores_what_is_there(plan):
    jobs, _ = plan("ab", model="static")
    jobs.done("ingest a")
    assert set(jobs.waiting) == {"ingest b", "hash a"}
    jobs.done("ingest b")
    fits = {"fit_statistics quality-statistics", "fit_encoder encoder"}
    assert set(jobs.waiting) == fits | {"hash a", "hash b"}
    jobs.done("hash b")
    jobs.done("hash a")
    assert set(jobs.waiting) == fits | {"repeats 0-of-1"}
    jobs.done("fit_encoder encoder")
    assert {"embed a", "embed b"} <= jobs.waiting.keys()
    jobs.done("fit_statistics quality-statistics")
    assert {"score a", "score b"} <= jobs.waiting.keys()


def test_a_large_corpus_is_fitted_on_64_shards_which_come_first(plan):
    names = [f"{number:03d}" for number in range(150)]
    jobs, _ = plan(names)
    sample = names[::3]
    assert [name.split()[1] for name in jobs.order[:50]] == sample
    for name in sample:
        jobs.done(f"ingest {name}")
    job, _ = jobs.waiting["fit_statistics quality-statistics"]
    assert [file.name for file in job.documents] == sample
    assert "ingest 001" in jobs.waiting


def test_shares_are_all_shards_and_each_fits_on_the_same_sample(plan):
    names = [f"{number:03d}" for number in range(150)]
    own = []
    for number in (1, 2, 3, 4):
        jobs, _ = plan(names, share=Share(number, 4))
        assert [name.split()[1] for name in jobs.order[:50]] == names[::3]
        embedded = set()
        for name in [name.split()[1] for name in jobs.order if name.startswith("ingest")]:
            jobs.done(f"ingest {name}")
            embedded |= {name for name in names if f"embed {name}" in jobs.waiting}
        assert jobs.expected["embed"] == len(embedded)
        job, _ = jobs.waiting["fit_statistics quality-statistics"]
        assert [file.name for file in job.documents] == names[::3]
        assert "dedup corpus" not in jobs.waiting
        own.append(embedded)
    assert sorted(name for share in own for name in share) == names


@pytest.mark.parametrize("text", ["", "2", "0/3", "4/3", "1/0", "-1/3", "1/2/3", "a/b", "1.0/2"])
def test_a_wrong_share_is_refused(text):
    with pytest.raises(ValueError, match=r"a share is I/N, such as 2/8"):
        Share.parse(text)


def test_shards_are_compared_once_every_one_is_hashed_or_set_aside(plan):
    jobs, found = plan("abc")
    jobs.done("ingest a")
    jobs.done("hash a")
    jobs.done("ingest b", bad=True)
    jobs.done("ingest c")
    assert "repeats 0-of-1" not in jobs.waiting
    jobs.done("hash c")
    job, _ = jobs.waiting["repeats 0-of-1"]
    assert [file.name for file in job.hashes] == ["a", "c"]
    jobs.done("repeats 0-of-1")
    job, _ = jobs.waiting["dedup corpus"]
    assert [file.name for file in job.hashes] == ["a", "c"]
    assert [file.name for file in job.repeats] == ["0-of-1"]
    assert set(found.documents) == {"a", "c"}
    assert "fit_statistics quality-statistics" in jobs.waiting
    assert jobs.expected["score"] == jobs.expected["embed"] == 2
    assert jobs.expected["dedup"] == 4


def test_the_last_shard_to_be_set_aside_lets_the_others_be_compared(plan):
    jobs, _ = plan("ab")
    jobs.done("ingest a")
    jobs.done("hash a")
    assert "repeats 0-of-1" not in jobs.waiting
    jobs.done("ingest b", bad=True)
    assert "repeats 0-of-1" in jobs.waiting


def test_a_large_corpus_is_listed_when_its_last_bucket_is_compared(plan, monkeypatch):
    monkeypatch.setattr(repeats, "BUCKET_DOCUMENTS", 5)
    jobs, _ = plan("ab")
    for name in ("ingest a", "ingest b", "hash a", "hash b"):
        jobs.done(name)
    buckets = [f"repeats {bucket}-of-4" for bucket in range(4)]
    assert jobs.waiting.keys() >= set(buckets)
    for name in reversed(buckets):
        assert "dedup corpus" not in jobs.waiting
        jobs.done(name)
    assert "dedup corpus" in jobs.waiting
    assert jobs.expected["dedup"] == 2 + 4 + 1


@pytest.mark.parametrize("scope", ["shard", "off"])
def test_without_a_comparison_a_shard_has_its_duplicates_at_once(plan, scope):
    jobs, found = plan("ab", exact_dedup=scope)
    jobs.done("ingest b")
    assert found.duplicates == {"b": no_duplicates("b")}
    assert set(jobs.waiting) == {"ingest a", "embed b"}
    assert "dedup" not in jobs.expected
    jobs.done("ingest a", bad=True)
    assert found.duplicates.keys() == {"b"}


def test_nothing_is_fitted_on_no_documents(plan):
    jobs, _ = plan("ab", model="static")
    jobs.done("ingest a", rows=0)
    jobs.done("ingest b", bad=True)
    jobs.done("hash a", rows=0)
    assert set(jobs.waiting) == {"repeats 0-of-1"}


def test_a_shard_that_an_earlier_fit_was_made_on_stays_in_the_sample(tmp_path):
    workspace = Workspace(tmp_path)
    names = [f"{number:03d}" for number in range(150)]
    file = StageFile(stage="ingest", name="001", path="x", rows=1, bytes=1, fingerprint="f")
    job = encoder_job(workspace, [], EmbeddingSettings())
    write_manifest(job.manifest_path, job.key, [], {}, fitted_on=[file])
    assert fit.sampled_shards(workspace, names)[:4] == ["000", "001", "003", "006"]
    assert fit.sampled_shards(workspace, names[:64]) == names[:64]


def prepared(jobs, name, *, bad=None):
    """Let the stages of one shard be done; `bad` is one that quarantines it."""
    for stage in ("ingest", "score", "embed"):
        if "fit_statistics quality-statistics" in jobs.waiting:
            jobs.done("fit_statistics quality-statistics")
        if stage == bad:
            jobs.quarantined[name] = "bad"
        jobs.done(f"{stage} {name}", bad=stage == bad)
        if stage == bad and stage == "ingest":
            return


@pytest.mark.parametrize("exact_dedup", ["off", "shard"])
def test_a_group_is_selected_from_as_soon_as_its_shards_are_prepared(plan, exact_dedup):
    """Shards of 10 documents, two in a block; who is next tells that a group is full."""
    jobs, found = plan("abcdef", fitted=True, exact_dedup=exact_dedup, block_size=20)
    found.select_early()
    prepared(jobs, "b")
    prepared(jobs, "a")
    assert not [name for name in jobs.waiting if name.startswith("select")]
    prepared(jobs, "c", bad="embed")  # left out: the group may go on with the next
    assert "select a..b" not in jobs.waiting
    prepared(jobs, "d")
    assert "select a..b" in jobs.waiting
    assert {"ingest e", "ingest f"} <= jobs.waiting.keys()
    prepared(jobs, "f")
    prepared(jobs, "e", bad="ingest")
    assert not [name for name in jobs.order if name.startswith("select d")]
    found.select()
    assert [name for name in jobs.order if name.startswith("select")] == ["select a..b", "select d..f"]


@pytest.mark.parametrize(
    "recipe",
    [
        {"exact_dedup": "corpus"},
        {"exact_dedup": "off", "block_budget": "price"},
    ],
)
def test_no_group_is_selected_from_before_all_is_known_that_it_depends_on(plan, recipe):
    jobs, found = plan("abc", fitted=True, block_size=10, **recipe)
    found.select_early()
    for name in "abc":
        prepared(jobs, name)
    assert not [name for name in jobs.order if name.startswith("select")]


@hypothesis.settings(max_examples=50)
@hypothesis.given(rows=st.lists(st.integers(0, 9), min_size=1, max_size=12), size=st.integers(1, 15), data=st.data())
def test_groups_are_the_same_whatever_the_order_of_work(rows, size, data):
    names = [f"{number:02d}" for number in range(len(rows))]
    bad = data.draw(st.sets(st.sampled_from(names), max_size=len(names) - 1))
    with TemporaryDirectory() as folder:
        jobs, found = planned(Path(folder), names, fitted=True, exact_dedup="off", block_size=size)
        found.select_early()
        if "fit_statistics quality-statistics" in jobs.waiting:
            jobs.done("fit_statistics quality-statistics")
        for name in data.draw(st.permutations(names)):
            jobs.done(f"ingest {name}", rows=rows[int(name)])
            jobs.done(f"score {name}", rows=rows[int(name)])
            jobs.quarantined |= {name: "bad"} if name in bad else {}
            jobs.done(f"embed {name}", rows=rows[int(name)], bad=name in bad)
        early = [name for name in jobs.order if name.startswith("select")]
        if any(rows[int(name)] for name in names):
            found.select()
        expected = [f"select {group_name(group)}" for group in grouped(found.selectable, found.settings.selection)]
        assert early == expected[: len(early)]
        assert len(early) >= len(expected) - 1


def near_settings(folder, corpus, **ingest):
    return PipelineSettings(
        workspace=str(folder),
        source=SourceSettings(path=str(corpus)),
        ingest=IngestSettings(min_chars=1, **{"near_dedup": "minhash"} | ingest),
        quality=QualitySettings(scorers=[SCORER]),
        embedding=EmbeddingSettings(static_dimensions=16),
        selection=PipelineSelectionSettings(select_ratio=0.9, solver="top_quality", device="cpu"),
    )


def near_deduplicated(folder, corpus, jobs, **ingest):
    """Plan and run all stages but the report."""
    settings = near_settings(folder, corpus, **ingest)
    plan = Plan(jobs, Workspace(folder), settings, discover(settings.source), PretrainedModels.of(settings))
    plan.prepare()
    plan.select()
    jobs.finish()
    plan.materialize()
    jobs.finish()
    return plan


def edited(texts, words):
    """Texts of which the last words are other ones."""
    return [f"{text.rsplit(' ', words)[0]} {'changed ' * words}" for text in texts]


@pytest.mark.parametrize("exact_dedup", ["corpus", "shard"])
def test_near_duplicates_are_no_candidates_and_are_counted(tmp_path, sample_corpus, exact_dedup):
    pytest.importorskip("rensa")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_shard(corpus, sample_corpus, "b", range(60))
    table = pq.read_table(corpus / "b.parquet")
    texts = table["text"].to_pylist()
    long = [row for row, text in enumerate(texts) if len(set(text.split())) > 150][:10]
    copies = table.take(long).set_column(
        table.column_names.index("text"), "text", [edited([texts[row] for row in long], 2)]
    )
    pq.write_table(pa.concat_tables([copies, table.take([50, 51])]), corpus / "c.parquet")

    folder = tmp_path / "w"
    plan = near_deduplicated(folder, corpus, jobs := JobsAtOnce(seed=0), exact_dedup=exact_dedup)
    exact = 2 if exact_dedup == "corpus" else 0
    assert plan.counts.dropped.get("duplicate", 0) >= exact
    assert plan.counts.dropped["near_duplicate"] >= 12 - exact
    counts = plan.counts
    assert counts.documents_in == counts.selected + counts.not_selected + sum(counts.dropped.values())
    assert counts.amounts["eligible"].documents == counts.documents_eligible < counts.documents_ingested

    workspace = Workspace(folder)
    write_catalog(workspace, plan.catalog_files())
    with open_catalog(workspace, "1GB") as catalog:
        drops = catalog.execute("SELECT sum(documents) FROM drops WHERE reason = 'near_duplicate'").fetchone()
        assert drops == (counts.dropped["near_duplicate"],)
        twins = catalog.execute(
            "SELECT near.shard, kept.shard, kept.text, dropped.text FROM near_duplicates AS near "
            "JOIN documents AS kept ON kept.shard = twin_shard AND kept.row = twin_row "
            "JOIN documents AS dropped ON dropped.shard = near.shard AND dropped.row = near.row"
        ).fetchall()
        listed = catalog.execute("SELECT stage, reason, count(*), count(text) FROM dropped GROUP BY ALL").fetchall()
        assert {(reason, rows) for stage, reason, rows, texts in listed if rows == texts and stage == "dedup"} == {
            (reason, counts.dropped[reason])
            for reason in ("duplicate", "near_duplicate")
            if exact_dedup == "corpus" or reason == "near_duplicate"
        }
    assert len(twins) == counts.dropped["near_duplicate"]
    assert {(dropped, kept) for dropped, kept, *_ in twins} >= {("c", "b")}
    assert all(kept.split()[:20] == dropped.split()[:20] for _, _, kept, dropped in twins)

    write_shard(corpus, sample_corpus, "a", range(100, 130))  # first by its name, later in its arrival
    again = near_deduplicated(folder, corpus, jobs := JobsAtOnce(seed=1), exact_dedup=exact_dedup)
    built = {name for name in jobs.built if name.split()[0] in ("signatures", "pairs", "near_dedup")}
    assert built == {"signatures a", "pairs 0-of-1", "near_dedup corpus"}
    assert {name: again.duplicates[name].fingerprint for name in "bc"} == {
        name: plan.duplicates[name].fingerprint for name in "bc"
    }
    near_deduplicated(folder, corpus, jobs := JobsAtOnce(), exact_dedup=exact_dedup)
    assert jobs.built == []
    update_index(workspace)
    (folder / "run.json").write_text("{}")  # says that a run was begun
    used = {shard.duplicates.path for shard in again.selectable if shard.duplicates.path}
    kept = near_settings(folder, corpus, exact_dedup=exact_dedup)
    removed = {one.folder: one.files for one in collect_garbage(str(folder), [kept])}
    assert removed["pairs"] == 3  # the buckets of both runs, and the list of the first
    assert {"signatures", "near_duplicates"}.isdisjoint(removed)
    near_deduplicated(folder, corpus, jobs := JobsAtOnce(), exact_dedup=exact_dedup)
    assert jobs.built == []
    assert all((folder / path).is_file() for path in used)
    off = near_settings(folder, corpus, exact_dedup=exact_dedup, near_dedup="off")
    near_deduplicated(folder, corpus, JobsAtOnce(), exact_dedup=exact_dedup, near_dedup="off")
    removed = {one.folder: one.files for one in collect_garbage(str(folder), [off])}
    assert removed["signatures"] == 3
    assert not any((folder / name).exists() for name in ("signatures", "pairs", "near_duplicates"))


@pytest.mark.parametrize("order", [{"seed": 0}, {"seed": 1}, {"later_first": True}])
def test_near_duplicates_by_vectors_wait_for_all_of_them_and_a_new_shard_compares_only_itself(
    tmp_path, sample_corpus, order
):
    corpus, folder = tmp_path / "corpus", tmp_path / "w"
    corpus.mkdir()
    write_shard(corpus, sample_corpus, "b", range(60))
    table = pq.read_table(corpus / "b.parquet")
    texts = [text or "" for text in table["text"].to_pylist()]
    long = [row for row, text in enumerate(texts) if len(set(text.split())) > 150][:10]
    copies = table.take(long).set_column(
        table.column_names.index("text"), "text", [edited([texts[row] for row in long], 2)]
    )
    pq.write_table(copies, corpus / "c.parquet")
    semantic = {"near_dedup": "semantic", "semantic": {"threshold": 0.97}}
    plan = near_deduplicated(folder, corpus, JobsAtOnce(**order), **semantic)
    counts = plan.counts
    assert counts.documents_in == counts.selected + counts.not_selected + sum(counts.dropped.values())
    assert plan.duplicates["c"].details["near_duplicate"] == 10
    near_deduplicated(folder, corpus, jobs := JobsAtOnce(), **semantic)
    assert jobs.built == []
    write_shard(corpus, sample_corpus, "a", range(100, 130))
    again = near_deduplicated(folder, corpus, jobs := JobsAtOnce(**order), **semantic)
    built = {name for name in jobs.built if name.split()[0] in ("centres", "cells", "similar", "near_dedup")}
    assert built == {"cells a", "similar 0-of-1", "near_dedup corpus"}
    assert {name: again.duplicates[name].fingerprint for name in "bc"} == {
        name: plan.duplicates[name].fingerprint for name in "bc"
    }
    wider = {"near_dedup": "semantic", "semantic": {"threshold": 0.8}}
    less = near_deduplicated(folder, corpus, JobsAtOnce(**order), **wider)
    assert less.counts.dropped["near_duplicate"] > again.counts.dropped["near_duplicate"]


def test_a_shard_without_vectors_does_not_keep_others_from_being_compared(tmp_path, sample_corpus, monkeypatch):
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, name in enumerate("abc"):
        write_shard(corpus, sample_corpus, name, range(30 * number, 30 * number + 30))
    real = EmbedJob.depends_on

    def broken(job):
        if job.name == "b":
            raise BadShardError("b: cannot be embedded")
        return real(job)

    monkeypatch.setattr(EmbedJob, "depends_on", broken)
    settings = near_settings(tmp_path / "w", corpus, near_dedup="semantic")
    jobs = JobsAtOnce()
    plan = Plan(jobs, Workspace(tmp_path / "w"), settings, discover(settings.source), PretrainedModels.of(settings))
    plan.prepare()
    assert jobs.quarantined.keys() == {"b"}
    assert set(plan.duplicates) == {"a", "c"}
    assert [shard.name for shard in plan.selectable] == ["a", "c"]


@pytest.mark.parametrize(
    ("kind", "stages"),
    [
        ("minhash", {"signatures a", "signatures b", "pairs 0-of-1"}),
        ("semantic", {"centres centres", "cells a", "cells b", "similar 0-of-1"}),
    ],
)
def test_a_run_that_is_killed_while_it_compares_goes_on(tmp_path, sample_corpus, kind, stages):
    pytest.importorskip("rensa")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_shard(corpus, sample_corpus, "a", range(40))
    write_shard(corpus, sample_corpus, "b", range(30, 60))
    built = []
    for _ in range(40):
        try:
            plan = near_deduplicated(tmp_path / "w", corpus, jobs := JobsAtOnce(stop_after=1), near_dedup=kind)
            break
        except KeyboardInterrupt:
            built += jobs.built
    assert len(built) == len(set(built)) > 10
    assert {*stages, "near_dedup corpus"} <= set(built)
    assert plan.dataset is not None
