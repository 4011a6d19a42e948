"""Publish: readers who start at the card find a complete dataset, even if a publication was killed.

Before that, the files of each partition are written or uploaded once, where they are to stay or are moved from.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.dataset.output import Output, write_record
from fineweb_mask.tasks.dataset.partition import write_partition
from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance, verify
from fineweb_mask.tasks.materialize import materialize
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.remote import copies
from fineweb_mask.tasks.storage.remote.copies import Store
from fineweb_mask.tasks.workspace.references import StageKey, digest
from tests.tasks.dataset.conftest import KilledError, make

KEY = StageKey(stage="materialize", version=1, settings="s", inputs="i")


def make_dataset(folder, content):
    """Write a dataset whose card and data identify it."""
    data = folder / "data"
    data.mkdir(parents=True)
    for number in range(2):
        (data / f"part-{number}.parquet").write_text(f"{content} {number}")
    (folder / "plots").mkdir()
    (folder / "plots" / "a.png").write_text(content)
    version = f"data-{digest(content)[:8]}"
    data.rename(folder / version)
    (folder / "README.md").write_text(f"---\npath: {version}/*.parquet\n---\n{content}")
    write_record(folder, KEY, tree_files(folder), {"content": content})
    return folder


def publish(folder, url):
    Output(folder, url, url, is_own=False).publish(folder, f"data-{digest(folder.name)[:8]}")


def published(url):
    return Output(Path(), url, url, is_own=False).whole()


def read_from_card(bucket, folder):
    """Return what a dataset holds, read as its users do: the card, then the files it names."""
    card = bucket.read(f"{folder}/README.md").decode()
    found = re.search(r"path: (data-[0-9a-f]{8})/", card)
    assert found is not None
    parts = {bucket.read(key).decode() for key in bucket.names(f"{folder}/{found[1]}/")}
    content = card.split("\n---\n")[1].split("\n")[0]
    assert parts == {f"{content} {number}" for number in range(2)}
    return content


def read_from_provenance(bucket, folder):
    """Return the content that the provenance record describes, after checking that its data files exist."""
    record = json.loads(bucket.read(f"{folder}/provenance.json"))
    for name, file in record["files"].items():
        if name.startswith("data-"):
            assert bucket.names()[f"{folder}/{name}"] == file["bytes"]
    return str(record["details"]["content"])


def test_a_dataset_is_published_and_replaced(bucket, tmp_path):
    url = f"{bucket.url}/out"
    assert published(url) is None
    one, two = (make_dataset(tmp_path / name, name) for name in ("one", "two"))
    mine = {"out/notes.txt", "out/data-mine/x", "out/data/x"}
    for name in mine:
        bucket.write(name, b"mine")
    publish(one, url)
    assert read_from_card(bucket, "out") == "one"
    found = published(url)
    assert found is not None
    assert found.details["content"] == "one"
    publish(two, url)
    assert read_from_card(bucket, "out") == read_from_provenance(bucket, "out") == "two"
    assert set(bucket.names()) - mine == {f"out/{file.relative_to(two).as_posix()}" for file in tree_files(two)}
    assert bucket.unfinished() == []
    bucket.write("out/README.md", (one / "README.md").read_bytes())  # with an old card it is incomplete
    assert published(url) is None
    publish(two, url)
    assert published(url) is not None


@pytest.mark.long
def test_killed_at_any_moment_it_leaves_the_old_dataset_or_the_new_one(bucket, tmp_path, monkeypatch):
    one, two = (make_dataset(tmp_path / name, name) for name in ("one", "two"))
    steps = ("upload", "delete")
    done = {name: getattr(Store, name) for name in steps}
    seen = []
    for kill_at in range(40):
        folder, left = f"out{kill_at}", [kill_at]
        publish(one, f"{bucket.url}/{folder}")

        def step(self, *arguments, name, left=left):
            if not left[0]:
                raise KilledError
            left[0] -= 1
            return done[name](self, *arguments)

        with monkeypatch.context() as patch:
            for name in steps:
                patch.setattr(Store, name, lambda self, *a, name=name: step(self, *a, name=name))
            try:
                publish(two, f"{bucket.url}/{folder}")
            except KilledError:
                seen.append((read_from_card(bucket, folder), read_from_provenance(bucket, folder)))
            else:
                break
        publish(two, f"{bucket.url}/{folder}")
        assert set(bucket.names(f"{folder}/")) == {
            f"{folder}/{file.relative_to(two).as_posix()}" for file in tree_files(two)
        }
    assert read_from_card(bucket, folder) == "two"
    # Two files of data and a plot, the record, the card; then the removal of the old files in one request.
    assert seen == [("one", "one")] * 4 + [("one", "two")] + [("two", "two")]


MANY: dict[str, Any] = {"partition_size": 1}


@pytest.fixture
def sent(monkeypatch):
    """The URLs of all files that are uploaded."""
    seen: list[str] = []
    upload = Store.upload

    def counted(self, source, name):
        seen.append(self.url_of(name))
        return upload(self, source, name)

    monkeypatch.setattr(Store, "upload", counted)
    return seen


@pytest.fixture
def at_url(bucket, tmp_path, monkeypatch):
    """Return the function that describes a dataset at a URL, alone or with its workspace, and its folder there."""
    monkeypatch.setenv(copies.SCRATCH, str(tmp_path / "scratch"))

    def of(shards, what="output"):
        if what == "workspace":
            return make(f"{bucket.url}/ws", shards, **MANY), "ws/dataset"
        making = make(tmp_path / "workspace", shards, **MANY)
        return making.with_settings(output=f"{bucket.url}/out"), "out"

    return of


@pytest.mark.long
@pytest.mark.parametrize("what", ["output", "workspace"])
def test_at_a_url_each_part_is_uploaded_once_before_the_card(at_url, four_shards, bucket, sent, tmp_path, what):
    making, folder = at_url(four_shards, what)
    data = f"{folder}/data-{making.job.unfinished.version[:8]}"
    jobs = making.partition_jobs()
    for job in jobs[:2]:
        write_partition(job)
    sent.clear()
    job = making.written()
    uploaded = [url.rsplit("/", 1)[1] for url in sent if f"/{data}/" in url]
    assert set(uploaded) == {"part-00002-00000.parquet", "part-00003-00000.parquet"}
    assert f"{folder}/README.md" not in bucket.names()
    sent.clear()
    materialize(job)
    assert not [url for url in sent if f"/{data}/" in url]
    assert [url.rsplit("/", 1)[1] for url in sent][-2:] == ["provenance.json", "README.md"]
    here = make(tmp_path / "local", four_shards, **MANY)
    here.write()
    local = {
        path.relative_to(here.workspace.dataset / "data").as_posix(): path.read_bytes()
        for path in tree_files(here.workspace.dataset / "data")
    }
    assert {name.removeprefix(f"{data}/"): bucket.read(name) for name in bucket.names(f"{data}/")} == local
    assert not [name for name in bucket.names() if "dataset-parts" in name]
    assert making.job.current() is not None
    other = making.with_settings(layout="flat", title="Another")
    other.write()
    names = bucket.names(f"{folder}/data-")
    assert {name.split("data-")[1].split("/")[0] for name in names} == {other.job.unfinished.version[:8]}
    assert b"# Another" in bucket.read(f"{folder}/README.md")
    dataset = find_dataset(f"{bucket.url}/{folder}")
    assert verify(dataset, read_provenance(dataset)).status == "ok"


@pytest.mark.long
def test_at_a_url_a_part_that_was_lost_stops_the_commit(at_url, four_shards, bucket):
    making, folder = at_url(four_shards)
    job = making.written()
    bucket.write(min(bucket.names(f"{folder}/data-")), b"cut")
    with pytest.raises(WorkspaceError, match="is missing or damaged: run again"):
        materialize(job)
    assert f"{folder}/README.md" not in bucket.names()


@pytest.mark.long
def test_for_a_folder_elsewhere_the_parts_lie_beside_it(four_shards, tmp_path):
    output = tmp_path / "out" / "mine"
    making = make(tmp_path / "ws", four_shards, **MANY).with_settings(output=str(output))
    job = making.written()
    assert [path.name for path in output.parent.iterdir()] == [".mine.parts"]
    inodes = {path.stat().st_ino for path in (output.parent / ".mine.parts").rglob("*.parquet")}
    assert len(inodes) > 4
    materialize(job)
    assert [path.name for path in output.parent.iterdir()] == ["mine"]
    assert {path.stat().st_ino for path in output.rglob("*.parquet")} == inodes  # moved, not copied
