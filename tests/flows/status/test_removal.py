"""What is removed on request is in no byte of a workspace, comes back in no run, and all else stays as it was."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fineweb_mask.flows.status import removal as module
from fineweb_mask.flows.status.inspection import inspect_recipe
from fineweb_mask.flows.status.removal import asked_in, request
from fineweb_mask.models.errors import SettingsError, WorkspaceError
from fineweb_mask.tasks.dataset.verify import find_dataset, read_provenance, verify
from fineweb_mask.tasks.ledger.receipt import Receipt, check_workspace
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.workspace.removals import Removals
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.flows.status.removals import COPY, NEAR, go_on, remove, row_of, run_here, settings_of, text_of, write_corpus

ROOT = Path(__file__).resolve().parents[3]
URLS = ["http://host1.example/0/1/", "https://www.host7.example/0/37", "https://nowhere.example/"]
"""Of a document with copies, of one more of its shard, and of none."""
KEPT = ("documents", "known", "dropped", "outcomes", "scores", "embeddings", "masks", "dataset", "exports", "fitted")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    pytest.importorskip("rensa")
    folder = tmp_path_factory.mktemp("removal")
    settings = settings_of(folder / "workspace", write_corpus(folder / "corpus"))
    older = settings.model_copy(update={"ingest": settings.ingest.model_copy(update={"min_chars": 10})})
    run_here(older)  # its documents are stale, and hold the same texts
    run_here(settings)
    for name in ("explore", "compare"):
        (folder / "workspace" / name).mkdir(parents=True)
        (folder / "workspace" / name / "page.html").write_text(text_of(0, 1))
    shutil.copytree(folder / "workspace" / "exports" / "parquet", folder / "workspace" / "exports" / "another")
    (folder / "workspace" / "cache" / "texts").mkdir()
    (folder / "workspace" / "cache" / "texts" / "left").write_text(text_of(0, 1))
    return settings


@pytest.fixture
def settings(original, tmp_path):
    copied = shutil.copytree(original.workspace, tmp_path / "workspace")
    return original.model_copy(update={"workspace": str(copied)})


def bytes_of(folder):
    """Yield every file of a folder, hidden ones too, with its bytes, and what its columns hold if it is Parquet."""
    for path in Path(folder).rglob("*"):
        if path.is_file():
            content = [path.read_bytes()]
            if path.suffix == ".parquet":
                content += [str(column.to_pylist()).encode() for column in pq.read_table(path).columns]
            yield path, b"\n".join(content)


def holding(folder, text):
    wanted = (text.encode(), text.upper().encode())
    return [path for path, content in bytes_of(folder) if any(one in content for one in wanted)]


def ids_of(settings):
    root = Path(find_dataset(settings.workspace).root)
    return pa.concat_tables([pq.read_table(path) for path in sorted(root.glob("data/*.parquet"))])["id"].to_pylist()


def test_removed_documents_and_their_copies_are_in_no_byte(settings):
    root = Path(settings.workspace)
    holders = {path.relative_to(root).parts[0] for path in holding(root, text_of(0, 1))}
    assert holders >= {"documents", "dropped", "dataset", "exports", "explore", "compare", "cache"}
    folders = ("documents", "scores", "embeddings", "outcomes")
    others = {path: path.stat().st_ino for name in folders for path in (root / name).glob("s2.*")}
    before = ids_of(settings)
    requested, receipt, built = remove(settings, "url", URLS)
    selected = len({"0-1", "0-37", COPY} & set(before))
    assert requested.model_dump() == {
        "names": 3,
        "unknown": 1,
        "unknown_names": ["https://nowhere.example/"],
        "documents": 3,
        "copies": 1,
        "twins": 0,
        "twins_left": 1,
        "twin_ids": [NEAR],
        "selected": selected,
        "of_dataset": len(before),
    }
    for number in (1, 37):
        assert holding(root, text_of(0, number)) == []
    assert holding(root, text_of(0, 37)[:60]) == holding(root, "/0/37") == []

    # The next best are in their place, one of them the near-duplicate that is none any more.
    after = ids_of(settings)
    assert not {"0-1", "0-37", COPY} & set(after)
    assert NEAR in set(after) - set(before)
    assert (receipt.rows, receipt.selected) == ({"before": len(before), "after": len(after)}, selected)
    assert len(before) - selected < len(after) <= len(before)

    # Nothing was ingested, scored, embedded or fitted, and nothing of a shard without hits was written again.
    assert not {name.split()[0] for name in built} & {"ingest", "score", "embed", "fit_encoder", "fit_statistics"}
    assert {path: path.stat().st_ino for path in others} == others
    assert len(others) == 8  # with those of the older recipe
    assert sorted(receipt.deleted) == ["compare", "explore", "exports/another"]
    assert (root / "exports" / "parquet" / "provenance.json").is_file()


def test_near_duplicates_go_if_they_are_asked_for(settings):
    requested, _, _ = remove(settings, "url", URLS, twins=True)
    assert (requested.documents, requested.copies, requested.twins, requested.twins_left) == (4, 1, 1, 0)
    assert NEAR not in ids_of(settings)
    words = text_of(0, 1).split()
    assert holding(settings.workspace, " ".join(words[:40])) == []


def test_only_the_files_concerned_are_written_again(settings):
    root = Path(settings.workspace)
    folders = ("documents", "scores", "embeddings", "masks", "dataset/data")
    before = {path: path.stat().st_ino for name in folders for path in tree_files(root / name)}
    _, receipt, _ = remove(settings, "id", ["2-8"])
    after = {path: path.stat().st_ino for name in folders for path in tree_files(root / name)}
    changed = {path for path in before if after.get(path) != before[path]} | (after.keys() - before.keys())
    of_shard = {"s2", "part-00002-00000"}
    assert {path.name.split(".")[0] for path in changed} == of_shard
    assert {path.name.split(".")[0] for path in before} == of_shard | {
        "s0",
        "s1",
        "part-00000-00000",
        "part-00001-00000",
    }
    assert [name for name in receipt.dataset if name.startswith("data/")] == ["data/part-00002-00000.parquet"]
    found = find_dataset(settings.workspace)
    assert verify(found, read_provenance(found)).status == "ok"


@pytest.mark.parametrize(
    ("kind", "names", "gone"),
    [
        ("id", ["0-1", "no-such-id"], {"0-1", COPY}),
        (
            "domain",
            ["*.host37.example", "host3.example"],
            {f"{shard}-{n}" for shard in range(3) for n in range(3, 60, 10)},
        ),
        ("text", [text_of(2, 8).title()], {"2-8"}),
    ],
)
def test_ids_domains_and_texts_are_removed_as_urls_are(settings, kind, names, gone):
    documents = Path(settings.workspace) / "documents"
    before = {name for path in documents.glob("*.parquet") for name in pq.read_table(path)["id"].to_pylist()}
    requested, _, _ = remove(settings, kind, names, most=0.5)
    after = {name for path in documents.glob("*.parquet") for name in pq.read_table(path)["id"].to_pylist()}
    assert before - after == gone
    assert requested.documents == len(gone)
    assert requested.unknown == (0 if kind == "text" else 1)


@pytest.mark.parametrize("block_size", [60, 1_000])
def test_the_other_documents_of_a_joint_selection_stay(tmp_path, block_size):
    pytest.importorskip("rensa")
    changes = {"solver": "mean_field", "metrics": "pairwise", "block_size": block_size}
    settings = settings_of(tmp_path / "workspace", write_corpus(tmp_path / "corpus"), selection=changes)
    run_here(settings)
    before = set(ids_of(settings))
    _, receipt, _ = remove(settings, "url", [f"host3.example/0/{number}" for number in range(3, 60, 10)])
    gone = {f"0-{number}" for number in range(3, 60, 10)}
    left, added = before - gone - set(ids_of(settings)), set(ids_of(settings)) - before
    assert receipt.selected == len(before & gone) > 0
    assert len(left) <= 3  # half of six documents less
    assert not added & gone
    assert len(added) - len(left) == receipt.rows["after"] - (receipt.rows["before"] - receipt.selected)
    found = inspect_recipe(Workspace(settings.workspace), settings)
    [*blocks] = [block for job, file in found.found["select"] for block in file.details["blocks"]]
    assert all(block["objective"] <= block["upper_bound"] for block in blocks)
    assert sum(block.get("filled_up", 0) for block in blocks) == len(added) > 0


def test_no_later_run_brings_them_back(settings, tmp_path):
    remove(settings, "url", URLS)
    workspace = Workspace(settings.workspace)
    written = {path: path.read_bytes() for path in (workspace.root / "documents").glob("s0.*")}
    assert len(written) == 1
    for path in written:
        path.unlink()
    assert run_here(settings)[0] == "ingest s0"
    assert {path: path.read_bytes() for path in written} == written  # as it was rewritten

    corpus = tmp_path / "corpus"
    shutil.copytree(settings.source.path, corpus)
    pq.write_table(
        pa.Table.from_pylist([row_of(3, 0), row_of(3, 1, url=URLS[2]), row_of(3, 2, text=text_of(0, 37))]),
        corpus / "s3.parquet",
    )
    changed = settings_of(
        settings.workspace, corpus, ingest={"min_chars": 25, "exact_dedup": "off", "near_dedup": "off"}
    )
    run_here(changed)
    [found] = [file for job, file in inspect_recipe(workspace, changed).found["ingest"] if job.name == "s3"]
    assert (found.rows, found.details["dropped"]) == (1, {"removed": 2})
    assert not {"0-1", "0-37", COPY, "3-1", "3-2"} & set(ids_of(changed))
    assert holding(workspace.root, text_of(0, 37)) == []


@pytest.mark.parametrize("kills", [
    ["fineweb_mask.flows.status.removal.rewrite_documents", "fineweb_mask.flows.status.removal.rewrite_rows"],
    ["fineweb_mask.tasks.dataset.parts:Parts.put_in_place", "fineweb_mask.flows.status.removal.remove_of_shards"],
    ["fineweb_mask.flows.status.garbage.update_index", "fineweb_mask.tasks.ledger.receipt:Receipt.write"],
])  # fmt: skip
def test_killed_anywhere_it_ends_as_if_nothing_had_happened(original, settings, tmp_path, kills):
    """The dataset that is there is always a whole one."""
    recipe, root = tmp_path / "recipe.json", Path(settings.workspace)
    recipe.write_text(settings.model_dump_json())
    Path(f"{settings.workspace}.urls.txt").write_text("\n".join(URLS))
    command = [sys.executable, "-m", "tests.flows.status.removals", str(recipe)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    for place in kills:
        done = subprocess.run([*command, place], cwd=ROOT, env=environment, check=False, capture_output=True, text=True)
        assert done.returncode == -9, done.stderr
        found = find_dataset(settings.workspace)
        assert verify(found, read_provenance(found)).status == "ok"
        assert Removals.read(Workspace(root)).pending is not None
        with pytest.raises(WorkspaceError, match="a removal is not finished"):
            request(settings, "url", Path(f"{settings.workspace}.urls.txt"))
    go_on(settings)
    assert holding(root, text_of(0, 1)) == []
    undisturbed = original.model_copy(update={"workspace": str(tmp_path / "undisturbed")})
    shutil.copytree(original.workspace, undisturbed.workspace)
    remove(undisturbed, "url", URLS)
    one, other = (
        {path.relative_to(folder): path.read_bytes() for name in KEPT for path in tree_files(folder / name)}
        for folder in (root, Path(undisturbed.workspace))
    )
    assert one == other


def test_a_receipt_tells_what_contradicts_it(settings, tmp_path):
    workspace, root = Workspace(settings.workspace), Path(settings.workspace)
    old = tmp_path / "old"
    shutil.copytree(root, old)
    remove(settings, "url", URLS)
    [path] = (root / "reports").glob("removal-*.json")
    receipt = Receipt.read(str(path))
    assert "host1" not in path.read_text()
    assert len(receipt.texts) == 2
    files = [name for name, (_, after) in receipt.files.items() if after is None]
    assert {name.split("/")[0] for name in files} >= {"documents", "scores", "embeddings", "hashes", "dropped"}

    content = read_provenance(find_dataset(settings.workspace)).content
    assert check_workspace(workspace, receipt, content) == []
    found = find_dataset(settings.workspace)
    assert verify(found, read_provenance(found), unwanted=receipt.unwanted).status == "ok"
    before = find_dataset(str(old))
    broken = verify(before, read_provenance(before), unwanted=receipt.unwanted)
    told = "documents that were removed on request"
    assert {problem.problem.partition(" ")[0] for problem in broken.problems if told in problem.problem} == {"holds"}
    assert len(broken.problems) == len({problem.file for problem in broken.problems if told in problem.problem})

    [documents] = [name for name in files if name.startswith("documents/s0")][:1]
    shutil.copy(old / documents, root / documents)
    assert [(one.file, one.problem) for one in check_workspace(workspace, receipt, content)] == [
        (documents, "holds 2 removed documents")
    ]
    (root / documents).unlink()
    (root / "removed.parquet").unlink()
    problems = [one.problem for one in check_workspace(workspace, receipt, "another")]
    assert problems == ["lacks 2 of the removed documents: a run may bring them back", *problems[1:]]
    assert "is an export of an earlier dataset" in problems[1]


def test_what_was_removed_may_be_asked_for_again(settings):
    remove(settings, "url", URLS)
    before = Removals.read(Workspace(settings.workspace))
    again = request(settings, "url", Path(f"{settings.workspace}.urls.txt"))
    assert (again.names, again.unknown, again.documents) == (3, 1, 0)
    after = Removals.read(Workspace(settings.workspace))
    assert after.pending is None
    assert after.entries.equals(before.entries)
    assert after.shards == before.shards


def test_nothing_is_changed_by_what_is_wrong(settings, tmp_path):
    names = tmp_path / "names"
    before = {path: path.stat().st_mtime_ns for path in tree_files(Path(settings.workspace))}

    def refused(kind, content, reason, error=SettingsError, **options):
        names.write_bytes(content)
        with pytest.raises(error, match=reason):
            request(settings, kind, names, **options)

    every = "\n".join(f"host{number}.example" for number in range(10)).encode()
    refused(
        "domain", every, r"--domains: \d+ of the \d+ documents of the dataset \(.*\) would be removed, more than --most"
    )
    refused("domain", b"https://example.org/", "line 1 of .* must be a domain such as example.org")
    refused("domain", b"a.example\n\norg\n", "line 3")
    refused("url", b" \n", "is empty")
    refused("id", b"\xff\xfe\x00", "is no text in UTF-8")
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        request(settings, "url", tmp_path / "missing")
    with pytest.raises(SettingsError, match="--urls and --texts are given"):
        asked_in("a", None, None, "b")
    with Workspace(settings.workspace).in_use():
        refused("url", b"a.example", "a run is using the workspace", WorkspaceError)
    counted = request(settings, "domain", names, dry_run=True) if names.write_bytes(every) else None
    assert counted.documents == 182
    after = {path: path.stat().st_mtime_ns for path in tree_files(Path(settings.workspace))}
    assert {path for path in before if after.get(path) != before[path]} == set()

    unfinished = settings.model_copy(update={"selection": settings.selection.model_copy(update={"select_ratio": 0.25})})
    with pytest.raises(WorkspaceError, match="was not run to the end"):
        request(unfinished, "url", names)
    assert module.asked_in(None, None, None, None) is None
