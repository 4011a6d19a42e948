"""What is counted of a group is what happened to its rows, and each step is given what the steps before it left."""

import random
from collections import Counter

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.losses import by_group
from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks import losses
from fineweb_mask.tasks.dedup.duplicates import dedup
from fineweb_mask.tasks.ingest import ingest
from fineweb_mask.tasks.losses import DROPPED, WIPED, LossesJob, count_losses, read_losses
from fineweb_mask.tasks.source.columns import settle
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.workspace.references import ShardFiles
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import dedup_job, ingest_job


def counted(tmp_path, files):
    """Return the job that counts the losses of files, given by name as rows, after deduplication."""
    for name, rows in files.items():
        (tmp_path / "source").mkdir(exist_ok=True)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "source" / f"{name}.parquet")
    source, settings = SourceSettings(path=str(tmp_path / "source")), IngestSettings(min_chars=5, languages=["en"])
    workspace = Workspace(tmp_path / "workspace")
    shards = settle(discover(source), source)
    documents = [ingest(ingest_job(workspace, shard, source, settings)) for shard in shards]
    job = dedup_job(workspace, documents)
    dedup(job)
    files = [
        ShardFiles(documents=file, duplicates=repeated)
        for file, repeated in zip(documents, job.shard_files(), strict=True)
    ]
    return LossesJob(root=workspace.address, shards=files, by=None)


def test_the_counts_of_a_group_are_those_of_its_rows(tmp_path):
    dice, seen = random.Random(0), set()
    texts = [None, "", "tiny", "a text of its own", *(f"a text that is kept {number}" for number in range(60))]
    rows = [
        {
            "text": dice.choice(texts),
            "source": dice.choice(["a", "b", "", None]),
            "language": dice.choice(["en", "de", None]),
            "year": dice.choice([1999, 2000]),
        }
        for _ in range(240)
    ]
    expected = Counter()
    for place, row in enumerate(rows):
        text, file = row["text"], place // 120
        reason = (
            "null_text"
            if text is None
            else "empty_text"
            if not text
            else "too_short"
            if len(text) < 5
            else "wrong_language"
            if row["language"] == "de"
            else "duplicate"
            if (text, file) in seen
            else "duplicate again"
            if (text, 1 - file) in seen
            else None
        )
        seen |= {(text, file)} if reason in {None, "duplicate again"} else set()
        expected[row["source"] or None, reason] += 1
    job = counted(tmp_path, {"a": rows[:120], "b": rows[120:]})
    file = count_losses(job)
    assert file.details["columns"] == ["source"]  # a number and a language name none unless they are asked for
    for group in by_group(read_losses(job.workspace, file)):
        assert group.documents == sum(number for (value, _), number in expected.items() if value == group.value)
        found = {**group.dropped["ingest"], "duplicate again": group.dropped["duplicate"]["duplicate"]}
        assert found | {None: group.kept} == {why: n for (value, why), n in expected.items() if value == group.value}
    asked = job.model_copy(update={"by": ["year", "language"]})
    found = by_group(read_losses(job.workspace, count_losses(asked)))
    assert [(one.by_column, one.value) for one in found] == [
        *(("language", value) for value in ("de", "en", None)),
        *(("year", value) for value in ("1999", "2000")),
    ]


def test_a_column_of_too_many_values_is_left_out_or_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(losses, "MOST_GROUPS", 30)
    rows = [{"text": f"page number {n}", "page": f"{n}", "site": f"{n % 2}" * 300} for n in range(60)]
    job = counted(tmp_path, {"a": rows[:25], "b": rows[25:]})
    file = count_losses(job)
    assert file.details["columns"] == ["site"]
    assert {row["value"] for row in read_losses(job.workspace, file)} == {"0" * 200, "1" * 200}
    with pytest.raises(SettingsError, match=r"^report.by: the column 'page' has too many values .*name another"):
        count_losses(job.model_copy(update={"by": ["page"]}))


def losses_of(*counts, share=0.05):
    """Return what each step drops, and the groups that are wiped out, of counts by group, stage and reason."""
    with duckdb.connect() as connection:
        connection.execute("CREATE TABLE counted (value VARCHAR, stage VARCHAR, reason VARCHAR, documents BIGINT)")
        connection.executemany("INSERT INTO counted VALUES (?, ?, ?, ?)", counts)
        connection.execute("ALTER TABLE counted ADD COLUMN by_column VARCHAR DEFAULT 'source'")
        connection.execute(f"CREATE TABLE losses AS {DROPPED}", {"columns": ["source"]})
        wiped = connection.sql(WIPED, params={"share": share, "least": 20}).fetchall()
        return connection.sql("FROM losses").to_arrow_table().to_pylist(), wiped


COUNTS = [
    ("a", "ingest", "too_short", 30),
    ("a", "ingest", "duplicate", 20),
    ("a", "dedup", "duplicate", 10),
    ("a", "dedup", "near_duplicate", 39),
    ("a", "embed", "bad_vector", 1),
]


def test_each_step_is_given_what_the_steps_before_it_left():
    found, _ = losses_of(*COUNTS)
    assert [(one["documents"], one["dropped"]) for one in found] == [(100, 30), (100, 20), (50, 10), (40, 39), (1, 1)]
    [group] = by_group(found)
    assert (group.documents, group.kept) == (100, 0)
    assert [*group.dropped] == ["ingest", "duplicate", "near_duplicate", "bad_vector"]
    [whole] = by_group(losses_of((None, None, None, 7))[0])
    assert (whole.value, whole.documents, whole.dropped) == (None, 7, {})


@pytest.mark.parametrize(
    ("share", "steps"),
    [(0.025, []), (0.026, ["near_duplicate"]), (1.0, ["ingest", "near_duplicate", "duplicate"])],  # few are left then
)
def test_a_group_is_wiped_out_by_one_step_that_keeps_less_than_the_share(share, steps):
    _, wiped = losses_of(*COUNTS, share=share)
    assert [step for _, _, step, *_ in wiped] == steps
    sizes = {"b": 20, "few": 19, None: 900, "c": 30}  # small groups and rows without a value do not count
    _, wiped = losses_of(*((value, "dedup", "duplicate", n) for value, n in sizes.items()))
    assert wiped == [
        ("source", "c", "duplicate", 30, 0, {"duplicate": 30}),  # the largest loss first
        ("source", "b", "duplicate", 20, 0, {"duplicate": 20}),
    ]
