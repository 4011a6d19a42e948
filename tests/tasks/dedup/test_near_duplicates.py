"""Near-duplicates of a corpus: those that a plain comparison of all documents finds, and which of them are kept."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.dedup.minhash import band_keys
from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.models.schemas import documents_schema
from fineweb_mask.models.settings.source import MinHashSettings
from fineweb_mask.tasks.dedup.buckets import find_in_bucket
from fineweb_mask.tasks.dedup.duplicates import NearDedupJob, duplicates_of, near_dedup, no_duplicates
from fineweb_mask.tasks.dedup.sort import SortJob, sort_rows
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.shard_files import NEAR, duplicate_rows
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import bucket_jobs

pytest.importorskip("rensa")

SETTINGS = MinHashSettings(bands=6, rows=4)
WORDS = [f"{one}{other}" for one in "abcdefghij" for other in "klmnopqrst"]

Place = tuple[str, int]


def corpus(seed: int, shards: int = 4, documents: int = 40) -> dict[str, list[str]]:
    """Texts of which some are others with a few words changed, within and across shards; some are very short."""
    dice = random.Random(seed)
    texts: list[str] = []
    for _ in range(shards * documents):
        if texts and dice.random() < 0.4:
            words = dice.choice(texts).split()
            for place in dice.sample(range(len(words)), min(len(words), dice.randint(1, 6))):
                words[place] = dice.choice(WORDS)
        else:
            words = dice.choices(WORDS, k=dice.choice([3, 60, 90]))
        texts.append(" ".join(words))
    names = dice.sample(["a", "b", "en/c", "z", "q"], shards)
    return {name: texts[place * documents : (place + 1) * documents] for place, name in enumerate(names)}


def write(workspace: Workspace, texts: dict[str, list[str]]) -> list[StageFile]:
    found = []
    for name, of_shard in texts.items():
        path = workspace.root / "documents" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        schema = pa.schema([documents_schema().field("row"), documents_schema().field("text")])
        rows = range(len(of_shard))
        pq.write_table(pa.table([pa.array(rows, pa.uint32()), pa.array(of_shard, pa.string())], schema=schema), path)
        relative = workspace.relative(path)
        fingerprint = "|".join(of_shard)
        found.append(
            StageFile(stage="ingest", name=name, path=relative, rows=len(of_shard), bytes=0, fingerprint=fingerprint)
        )
    return found


def job_of(
    workspace: Workspace, texts: dict[str, list[str]], buckets: int = 1, exact: list[StageFile] | None = None
) -> NearDedupJob:
    """Sketch and compare the shards, which came in this order, and return the job that lists what is found."""
    root = str(workspace.root)
    documents = write(workspace, texts)
    signatures = [sort_rows(SortJob(root=root, by="signatures", file=file, minhash=SETTINGS)) for file in documents]
    pairs = tuple(find_in_bucket(job) for job in bucket_jobs(workspace, "pairs", signatures, buckets))
    exact = exact or [no_duplicates(name) for name in texts]
    return NearDedupJob(root=root, sorted_rows=signatures, exact=exact, buckets=pairs)


def expected(texts: dict[str, list[str]]) -> dict[Place, Place]:
    """Return the dropped documents and the kept one of each, from every two documents' bands."""
    places = [(name, row) for name, of_shard in texts.items() for row in range(len(of_shard))]
    bands = band_keys(pa.array([text for of_shard in texts.values() for text in of_shard]), SETTINGS)
    clusters = {place: place for place in range(len(places))}
    for later in range(len(bands.rows)):
        for earlier in range(later):
            if (bands.keys[later] == bands.keys[earlier]).any():
                one, other = clusters[int(bands.rows[later])], clusters[int(bands.rows[earlier])]
                first, last = min(one, other), max(one, other)
                clusters = {place: first if found == last else found for place, found in clusters.items()}
    return {places[place]: places[first] for place, first in clusters.items() if place != first}


def listed(job: NearDedupJob) -> dict[Place, Place]:
    files = job.shard_files()
    assert files is not None
    found = {}
    for file in files:
        assert bool(file.path) == bool(file.rows)
        if file.path:
            table = pq.read_table(job.workspace.resolve(file))
            rows = table["row"].to_pylist()
            assert rows == sorted(rows)
            twins = zip(table["twin_shard"].to_pylist(), table["twin_row"].to_pylist(), strict=True)
            found |= dict(zip(((file.name, row) for row in rows), twins, strict=True))
    return found


@pytest.mark.parametrize("seed", range(4))
def test_a_plain_comparison_of_all_documents_finds_the_same(tmp_path: Path, seed: int) -> None:
    texts = corpus(seed)
    want = expected(texts)
    assert 10 < len(want) < 150
    for buckets in (1, 4):
        job = job_of(Workspace(tmp_path / str(buckets)), texts, buckets)
        file = near_dedup(job)
        assert listed(job) == want
        assert file.rows == len(want)
        files = job.shard_files() or []
        assert [one.details[NEAR] for one in files] == [one.rows for one in files]
        assert near_dedup(job).cached


def test_exact_duplicates_stay_in_the_lists_and_are_not_counted_as_near(tmp_path: Path) -> None:
    base = " ".join(random.Random(0).choices(WORDS, k=90))
    close = base.replace(base.split()[5], "other")
    texts = {"a": ["nothing like it " * 9, base], "b": [base, close, "nothing like that at all " * 5], "c": []}
    workspace = Workspace(tmp_path)
    (tmp_path / "duplicates").mkdir()
    pq.write_table(pa.table({"row": pa.array([0], pa.uint32())}), tmp_path / "duplicates" / "b.parquet")
    exact = duplicates_of("b", 1, 1, "content").model_copy(update={"path": "duplicates/b.parquet"})
    job = job_of(workspace, texts, exact=[no_duplicates("a"), exact, no_duplicates("c")])
    near_dedup(job)
    assert listed(job) == {("b", 0): (None, None), ("b", 1): ("a", 1)}
    _, of_b, of_c = job.shard_files() or []
    assert (of_b.rows, of_b.details) == (2, {NEAR: 1})
    assert duplicate_rows(workspace, of_b).tolist() == [0, 1]
    assert (of_c.rows, of_c.fingerprint) == (0, no_duplicates("c").fingerprint)  # as if nothing had been compared


def test_a_shard_that_is_added_sketches_itself_and_changes_no_other_list(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    texts = corpus(7, shards=3)
    added = {"new": [next(iter(texts.values()))[0], " ".join(random.Random(1).choices(WORDS, k=70))]}
    first = job_of(workspace, texts)
    near_dedup(first)
    before = {file.name: file for file in first.shard_files() or []}
    paths = {path: path.stat().st_mtime_ns for path in (tmp_path / "near_duplicates").rglob("*.parquet")}
    sketched = {path: path.stat().st_mtime_ns for path in (tmp_path / "signatures").rglob("*.parquet")}
    job = job_of(workspace, texts | added)
    near_dedup(job)
    assert listed(job) == expected(texts | added)
    after = {file.name: file for file in job.shard_files() or []}
    assert {name: after[name] for name in before} == before
    assert {path: path.stat().st_mtime_ns for path in paths} == paths
    assert {path: path.stat().st_mtime_ns for path in sketched} == sketched


def test_a_lost_list_is_noticed_and_written_again(tmp_path: Path) -> None:
    job = job_of(Workspace(tmp_path), corpus(2))
    near_dedup(job)
    lost = next(path for path in job.paths() if path.parent.name != "pairs" and path.is_file())
    content = lost.read_bytes()
    lost.unlink()
    assert job.current() is None
    assert not near_dedup(job).cached
    assert lost.read_bytes() == content


def test_without_pairs_nothing_is_listed(tmp_path: Path) -> None:
    job = job_of(Workspace(tmp_path), {"a": ["few words"], "b": []})
    assert near_dedup(job).rows == 0
    with pytest.raises(WorkspaceError, match="run again"):
        near_dedup(job.model_copy(update={"buckets": (), "force": True}))


def test_keys_are_sorted_and_read_by_range_above_half_of_all_numbers(tmp_path: Path) -> None:
    """Of 64 bits without a sign, which Parquet's statistics keep apart from those with one."""
    texts = corpus(3)
    workspace = Workspace(tmp_path)
    [file, *_] = write(workspace, texts)
    sketched = sort_rows(SortJob(root=str(tmp_path), by="signatures", file=file, minhash=SETTINGS))
    table = pq.read_table(workspace.resolve(sketched))
    keys = table["key"].to_numpy()
    assert (np.diff(keys.astype(object)) >= 0).all()
    assert keys[-1] > 2**63
    assert sketched.rows % SETTINGS.bands == 0
    assert sketched.rows < file.rows * SETTINGS.bands  # some texts are too short
