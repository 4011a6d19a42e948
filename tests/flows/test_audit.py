"""An audit from the source to its figures, run here: what is known of a corpus is what it says."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.audit import dropped
from fineweb_mask.flows.pipeline.drawn import narrowed
from fineweb_mask.models.audit.planting import prose
from fineweb_mask.models.settings import EmbeddingSettings, IngestSettings, PipelineSettings, SourceSettings
from fineweb_mask.models.settings.quality import ColumnScorerSettings, QualitySettings
from fineweb_mask.models.settings.source import FilterSettings
from fineweb_mask.tasks.audit.audit import AuditJob, audit
from fineweb_mask.tasks.audit.fates import EXACT, FILTERS, NEAR, read_fates
from fineweb_mask.tasks.audit.sample import CASES, SAMPLED, WORKSPACE, draw_source
from fineweb_mask.tasks.source.columns import settle
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.corpora import copied, of_kind
from tests.flows.pipeline.run_here import RunHere


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A site of prose with a mirror of near-copies in a later file, exact copies, and a site of too short texts."""
    folder = tmp_path_factory.mktemp("corpus")
    both = copied(300, 0.01)
    originals, mirror = zip(*((both.texts[one], both.texts[other]) for one, other in both.copies), strict=True)
    own = of_kind(prose, "prose", 300).texts
    files = {
        "a": [*((text, "site") for text in originals), *(("No.", "short") for _ in range(40))],
        "b": [*((text, "mirror") for text in mirror), *((text, "other") for text in [*own, *own[:30]])],
    }
    for name, rows in files.items():
        texts, sites = zip(*rows, strict=True)
        pq.write_table(pa.table({"text": texts, "site": sites}), folder / f"{name}.parquet")
    return folder


def settings_of(corpus, folder, **ingest):
    return PipelineSettings(
        workspace=str(folder / "unused"),
        source=SourceSettings(path=str(corpus)),
        ingest=IngestSettings(**{"near_dedup": "minhash"} | ingest),
        quality=QualitySettings(scorers=[ColumnScorerSettings(column="token_count")]),
        embedding=EmbeddingSettings(static_dimensions=16),
    )


def audited(corpus, folder, **ingest):
    settings = settings_of(corpus, folder, **ingest)
    shards = settle(discover(settings.source), settings.source)
    draw_source(folder, shards, settings.source, settings.ingest, "site", 1_000)
    run = RunHere(narrowed(settings, folder))
    files = dropped(run)
    job = AuditJob(root=str(folder / "own"), drawn=str(folder), shards=files, settings=settings.ingest, by="site")
    details = audit(job).details
    return details, read_fates(Workspace(folder / WORKSPACE), files, folder / CASES), job


@pytest.fixture(scope="module")
def found(corpus, tmp_path_factory):
    pytest.importorskip("rensa")
    return audited(corpus, tmp_path_factory.mktemp("audited"))


def step_of(details, name):
    return next(step for step in details["steps"] if step["step"] == name)


def test_groups_that_are_wiped_out_are_named_with_the_step(found):
    details, _, job = found
    kept = {one["group"]: one["kept"] for one in details["groups"]}
    assert kept["short"] == 0
    assert kept["mirror"] <= 0.02
    assert kept["site"] == 1
    assert [
        warning
        for warning in details["warnings"]
        if warning.startswith("filters: 1 groups keep less than 5%: short 0%")
    ]
    assert [
        warning for warning in details["warnings"] if warning.startswith("near: 1 groups keep less than 5%: mirror ")
    ]
    assert (job.folder / "index.html").is_file()


def test_every_row_is_accounted_for_and_every_dropped_one_has_the_twin_that_is_kept(found):
    details, fates, _ = found
    assert len(fates.sampled) == details["documents"] == 970
    assert sum(step["dropped"] for step in details["steps"]) == sum(
        fates.steps[place] is not None for place in fates.sampled
    )
    for place, step in enumerate(fates.steps):
        if step == EXACT:
            assert fates.texts[fates.twins[place]].lower().split() == fates.texts[place].lower().split()
        elif step == NEAR:
            assert fates.steps[fates.twins[place]] is None
        elif step == FILTERS:
            assert fates.reasons[place] == "too_short"


def test_planted_cases_are_found_and_clean_pages_kept(found):
    details, _, _ = found
    near, exact = step_of(details, NEAR), step_of(details, EXACT)
    assert exact["planted"]["copy"][0] == 1
    assert exact["dropped"] == 30
    assert near["planted"]["edited 1.5%"][0] >= 0.9
    assert near["planted"]["edited 20%"][0] == 0
    assert near["alike"][0] >= 0.98
    assert near["alike_found"][0] >= 0.95
    assert all(step["planted"]["clean"][0] == 0 for step in details["steps"])
    cases = {one["kind"]: one for one in details["cases"]}
    assert cases["clean"]["kept"] == cases["clean"]["n"]


def test_filters_and_benchmarks_are_steps_of_their_own(corpus, tmp_path):
    items = ["a word of the town council that nobody who has read it will ever forget again in his life", "who won"]
    pq.write_table(pa.table({"text": items}), tmp_path / "bench.parquet")
    details, fates, _ = audited(
        corpus,
        tmp_path / "out",
        near_dedup="off",
        exact_dedup="shard",
        decontaminate=[str(tmp_path / "bench.parquet")],
        filters=[FilterSettings(kind="regex", options={"regex_exp": "violin"})],
    )
    assert [step["step"] for step in details["steps"]] == ["filters", "benchmarks", "exact"]
    assert step_of(details, EXACT)["planted"]["copy"][0] == 1  # they stand in the file of their original
    assert {"regex", "too_short"} == set(step_of(details, FILTERS)["reasons"])
    assert step_of(details, FILTERS)["planted"]["clean"][0] > 0.2
    assert [warning for warning in details["warnings"] if "of the clean pages that were planted are dropped" in warning]
    planted = [place for place, kind in enumerate(fates.kinds) if kind == "benchmark" and fates.steps[place] != FILTERS]
    assert all(fates.steps[place] == "benchmarks" for place in planted)
    assert fates.kinds.count(SAMPLED) == 970
