"""Publish: readers who start at the card find a complete dataset, even if a publication was killed."""

import json
import re

import pytest

from fineweb_mask.tasks.dataset.output import publish as publish_version
from fineweb_mask.tasks.dataset.output import published
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.remote.object_store import Store
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageKey, digest
from tests.tasks.dataset.conftest import KilledError

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
    write_manifest(folder / "provenance.json", KEY, tree_files(folder), {"content": content})
    return folder


def publish(folder, url):
    publish_version(folder, url, f"data-{digest(folder.name)[:8]}")


def read_from_card(bucket, folder):
    """Return what a dataset holds, read as its users do: the card, then the files it names."""
    card = bucket.read(f"{folder}/README.md").decode()
    found = re.search(r"path: (data-[0-9a-f]{8})/", card)
    assert found is not None
    parts = {bucket.read(key).decode() for key in bucket.names(f"{folder}/{found[1]}/")}
    content = card.rpartition("\n")[2]
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
    steps = ("_upload", "_delete")
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
