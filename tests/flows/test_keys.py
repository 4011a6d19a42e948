"""What makes a stage run again, as a table: the settings that it reads, its inputs, and nothing else."""

import pytest

from fineweb_mask.flows.curate import pipeline
from fineweb_mask.flows.pipeline.fit import PretrainedModels
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.recipe import load_recipe
from fineweb_mask.tasks import select
from fineweb_mask.tasks.dedup.duplicates import DedupJob
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.inference.scorers import QualityModel
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.workspace.references import StageFile, digest
from fineweb_mask.tasks.workspace.workspace import Workspace

RECIPE = """
workspace: {workspace}
source: {{path: corpus}}
quality:
  scorers: [{{kind: column, column: token_count}}, {{kind: edu, model: edu-classifier}}]
embedding: {{model: e5-base}}
selection: {{metrics: pairwise}}
"""
WRITE = {"partition", "materialize", "report"}
SELECT = {"select"} | WRITE | {"witness"}
EMBED = {"embed", "losses"} | SELECT
SCORE = {"score"} | SELECT
ALL = {"ingest", "dedup", "score"} | EMBED
DETAILS = {**dict.fromkeys(("rows_in", "tokens_in", "tokens", "tokens_estimated"), 0), "blocks": [], "statistics": {}}


def done(job, name=None):
    """What a job leaves behind: known by its key, or by its content where it was fitted."""
    known = digest(job.key.settings) if job.key.stage.startswith("fit") else job.key.fingerprint
    same = {"path": "x", "rows": 9, "bytes": 1, "details": DETAILS}
    return StageFile(stage=job.key.stage, name=name or job.name, fingerprint=known, **same)


class Planned(Run):
    """Every job is done as soon as it is asked for."""

    remembers = False

    def done(self, _job):
        return None

    def _run(self, jobs, _at_once=None):
        self.keys = getattr(self, "keys", {}) | {(job.key.stage, job.name): job.key.fingerprint for job in jobs}
        return [done(job) for job in jobs]


@pytest.fixture
def keys(tmp_path, monkeypatch):
    """Return the function that plans a run of two shards and returns the keys of its jobs, by stage and name."""
    monkeypatch.setattr(select.SelectJob, "shard_files", lambda job, *_: [done(job, one.name) for one in job.shards])
    monkeypatch.setattr(DedupJob, "shard_files", lambda job, *_: [done(job, name) for name in job.shard_names])

    def of(*overrides, workspace="workspace", sources=("1", "1"), edu="content", encoder="content"):
        path = tmp_path / "recipe.yaml"
        path.write_text(RECIPE.format(workspace=tmp_path / workspace))
        settings = load_recipe(path, overrides)
        column, classifier = settings.quality.scorers
        scorers = {
            column.name: QualityModel(settings=column, path="", fingerprint=""),
            classifier.name: QualityModel(settings=classifier, path="/edu", fingerprint=edu),
        }
        given = PretrainedModels(scorers=scorers, encoder=ModelFolder(path="/e5", fingerprint=encoder), sidecars={})
        shards = [
            SourceShard(name=name, relative=name, url=name, format="parquet", bytes=1, fingerprint=content)
            for name, content in zip("ab", sources, strict=True)
        ]
        run = Planned(Workspace(settings.workspace), settings, shards, given)
        pipeline(run)
        return run.keys

    return of


def changed(before, after):
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


@pytest.mark.parametrize(
    ("override", "stages"),
    [
        ("source.text_column=content", ALL),
        ("ingest.min_chars=7", ALL),
        ("ingest.on_bad_shard=fail", set()),
        ("ingest.on_wiped_group=stop", set()),
        ("ingest.near_threshold=0.6", set()),  # of near-duplicates, which are not looked for
        ("quality.combine=minimum", SCORE),
        ("quality.by=language", {"fit_statistics"} | SCORE),
        ("quality.scorers.1.max_tokens=99", {"fit_statistics"} | SCORE),
        ("embedding.prompt=x", EMBED),
        ("selection.lamb=0.9", SELECT),
        ("selection.groups={column: dump}", SELECT),
        ("selection.blocks=order", set()),  # all documents are one block
        ("selection.metrics=disf", SELECT),
        ("selection.block_size=999999", set()),
        ("materialize.title=x", {"materialize", "report"}),
        ("report.by=[language]", {"losses", "report"}),
        ("materialize.file_size=99999999", {"partition", "materialize", "report"}),
        ("materialize.partition_size=99999999", {"partition", "materialize", "report"}),
        ("engine.memory_limit=1GB", set()),
    ],
)
def test_a_setting_changes_the_stages_that_read_it_and_what_follows(keys, override, stages):
    assert {stage for stage, _ in changed(keys(), keys(override))} == stages


@pytest.mark.parametrize(("scope", "stages"), [("shard", SCORE | EMBED), ("off", ALL - {"dedup"})])
def test_without_a_comparison_of_shards_none_is_planned(keys, scope, stages):
    before, after = keys(), keys(f"ingest.exact_dedup={scope}")
    assert before.keys() - after.keys() == {("dedup", "corpus")}
    assert {stage for stage, name in after if before[stage, name] != after[stage, name]} == stages


def test_near_duplicates_are_looked_for_in_sketches_and_change_what_is_selected(keys):
    before, after = keys(), keys("ingest.near_dedup=minhash")
    assert after.keys() - before.keys() == {("sketch", "a"), ("sketch", "b")}
    assert before.keys() <= after.keys()
    follows = {"dedup"} | SCORE | EMBED
    assert {stage for stage, name in before if before[stage, name] != after[stage, name]} == follows
    other = keys("ingest.near_dedup=minhash", "ingest.near_threshold=0.6")
    assert {stage for stage, _ in changed(after, other)} == {"sketch"} | follows
    alone = keys("ingest.near_dedup=minhash", "ingest.exact_dedup=shard")
    assert {stage for stage, _ in changed(after, alone)} == follows


def test_a_changed_source_file_changes_its_own_shard_and_what_is_made_of_all(keys):
    names = {"dedup": "corpus", "losses": "corpus", "partition": "00000", "select": "a..b"}
    names |= {"materialize": "dataset", "witness": "report", "report": "report"}
    names |= dict.fromkeys(("ingest", "score", "embed"), "b")
    of_another_list = {(stage, "a") for stage in ("score", "embed")}  # here, where no list is known by what is in it
    assert changed(keys(), keys(sources=("1", "2"))) == set(names.items()) | of_another_list


def test_another_model_changes_what_it_made_and_another_place_nothing(keys):
    assert changed(keys(), keys(workspace="elsewhere")) == set()
    assert {stage for stage, _ in changed(keys(), keys(encoder="other"))} == EMBED
    assert {stage for stage, _ in changed(keys(), keys(edu="other"))} == {"fit_statistics"} | SCORE
