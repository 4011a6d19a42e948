"""Verify: a dataset as written is correct, and every kind of damage is reported."""

import glob
import json
import random
import shutil
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from fineweb_mask.tasks.dataset.output import CARD
from fineweb_mask.tasks.dataset.verify import VerifyError, find_dataset, read_provenance, verify
from fineweb_mask.tasks.storage.atomic import tree_files
from fineweb_mask.tasks.storage.remote import errors
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, read_manifest
from tests.tasks.conftest import HOSTILE_DUMPS
from tests.tasks.dataset.conftest import record_again


def check(place):
    dataset = find_dataset(str(place))
    return verify(dataset, read_provenance(dataset))


def problems(place):
    found = check(place)
    assert found.status == ("broken" if found.problems else "ok")
    return {problem.file: problem.problem for problem in found.problems}


def part(folder):
    return min((folder / "data").rglob("*.parquet"))


def name(folder, path):
    return path.relative_to(folder).as_posix()


@pytest.fixture
def dataset(built, tmp_path):
    return Path(shutil.copytree(built.workspace.dataset, tmp_path / "dataset"))


def test_an_intact_dataset_has_no_problems(built, dataset):
    found = check(dataset)
    assert found.problems == []
    assert (found.status, found.rows, found.repeated_ids) == ("ok", built.counts.selected, 0)
    assert found.tokens == built.dataset.details["tokens"] == built.counts.tokens_selected > 0
    assert find_dataset(str(dataset.parent)).url == str(dataset)
    with pytest.raises(VerifyError, match="must be a folder"):
        find_dataset(str(dataset / PROVENANCE))
    assert check(dataset.parent) == found
    assert found.tokens_estimated is None
    record_again(dataset, counts=built.counts.model_dump() | {"tokens_estimated": 3, "tokens_selected": 1_234})
    found = check(dataset)
    assert (found.status, found.tokens_estimated) == ("ok", 1_234)  # told as such


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-9]), "bytes, "),
        (lambda path: path.rename(path.with_name("other.parquet")), "is missing"),
    ],
)
def test_a_damaged_file_is_reported_with_all_others(dataset, damage, message):
    first, *_, last = sorted((dataset / "data").rglob("*.parquet"))
    last.write_bytes(last.read_bytes()[:200] + b"?" + last.read_bytes()[201:])
    (dataset / "data" / "more.parquet").write_bytes(b"x")
    damage(first)
    found = check(dataset).problems
    assert any(message in one.problem for one in found if one.file == name(dataset, first))
    assert {name(dataset, first), name(dataset, last)} <= {one.file for one in found}
    assert any("does not belong" in one.problem for one in found if one.file == "data/more.parquet")
    assert not any("are recorded, the files hold" in one.problem for one in found)


def test_a_flipped_bit_is_found_wherever_it_is(dataset):
    numbers = random.Random(0)
    target = part(dataset)
    content = target.read_bytes()
    for bit in [0, 8 * len(content) - 1, *(numbers.randrange(8 * len(content)) for _ in range(4))]:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        target.write_bytes(damaged)
        assert "SHA-256" in " ".join(problem.problem for problem in check(dataset).problems)


def test_what_the_hub_s_client_keeps_is_no_fault_nor_is_a_link_of_its_cache(dataset, tmp_path):
    state = dataset / ".cache" / "huggingface" / "upload"
    state.mkdir(parents=True)
    (state / "x.metadata").write_text("1\n")
    (dataset / ".gitattributes").write_text("*.parquet filter=lfs\n")
    snapshot, blobs = tmp_path / "snapshots" / "main", tmp_path / "blobs"
    blobs.mkdir()
    for number, path in enumerate(tree_files(dataset)):
        link = snapshot / path.relative_to(dataset)
        link.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, blobs / str(number))
        link.symlink_to(blobs / str(number))
    assert problems(dataset) == problems(snapshot) == {}
    for added in (".cache/other", ".gitattributes2"):
        (dataset / added).write_text("x")
    assert set(problems(dataset)) == {".cache/other", ".gitattributes2"}


def test_an_edited_record_is_reported(dataset):
    text, card = (dataset / PROVENANCE).read_text(), (dataset / CARD).read_text()
    record = json.loads(text)
    for section, edit in {"details": {"seed": 7}, "key": {"settings": "0" * 32}, "fitted_on": {"a": "b"}}.items():
        (dataset / PROVENANCE).write_text(json.dumps(record | {section: record[section] | edit}))
        assert "is on the card: it was edited" in problems(dataset)[PROVENANCE]
    (dataset / PROVENANCE).write_text(text)
    (dataset / CARD).write_text(card.rpartition("\nSHA-256 of")[0])
    assert set(problems(dataset)) == {CARD}
    (dataset / CARD).unlink()
    assert "is missing" in problems(dataset)[CARD]


def test_wrong_types_in_a_record_are_named(dataset):
    counts, recipe = {"tokens_selected": "x"}, {"ingest": {"exact_dedup": 1}}
    for details in ({"rows": "many"}, {"counts": counts}, {"recipe": recipe}):
        record_again(dataset, **({"rows": 1, "counts": {}, "recipe": {}} | details))
        with pytest.raises(VerifyError, match=rf"not a valid provenance record(.|\n)*{min(details)}"):
            check(dataset)
    (dataset / PROVENANCE).write_text('{"files": 3}')
    with pytest.raises(VerifyError, match="is not a valid provenance record"):
        check(dataset)


def test_rows_and_tokens_are_counted(built, dataset):
    target = part(dataset)
    table = pq.read_table(target)
    pq.write_table(table.slice(1), target)
    record_again(dataset)
    assert built.counts.selected > 1
    tokens = built.counts.tokens_selected - table["token_count"][0].as_py()
    assert problems(dataset)[PROVENANCE].endswith(f"are recorded, the files hold {tokens:,}")
    pq.write_table(table, target)
    record_again(dataset, tokens=1)
    assert problems(dataset) == {PROVENANCE: f"1 tokens are recorded, the files hold {built.counts.tokens_selected:,}"}


def test_a_repeated_document_is_reported_unless_the_recipe_left_duplicates_in(dataset):
    target = part(dataset)
    table = pq.read_table(target)
    pq.write_table(pa.concat_tables([table, table.slice(1, 1)]), target)
    record_again(dataset)
    [twice] = [problem for file, problem in problems(dataset).items() if file == name(dataset, target)]
    assert twice == f"holds the document {table['id'][1].as_py()!r} 2 times"
    manifest = read_manifest(dataset / PROVENANCE)
    assert manifest is not None
    recipe, tokens = manifest.details["recipe"], manifest.details["tokens"] + table["token_count"][1].as_py()
    kept = recipe | {"ingest": recipe["ingest"] | {"exact_dedup": "off"}}
    record_again(dataset, recipe=kept, rows=manifest.details["rows"] + 1, tokens=tokens)
    assert problems(dataset) == {}


def test_one_id_with_two_texts_is_counted_and_no_fault(built, dataset):
    target = part(dataset)
    table = pq.read_table(target)
    ids = table["id"].to_pylist()
    place = table.schema.get_field_index("id")
    pq.write_table(table.set_column(place, "id", pa.array([ids[1], *ids[1:]])), target)
    record_again(dataset)
    found = check(dataset)
    assert (found.problems, found.repeated_ids) == ([], 1)


def test_readers_find_every_row_of_dumps_with_odd_names(hostile_dumps):
    folder = hostile_dumps.workspace.dataset
    found = check(folder)
    assert (found.problems, found.rows) == ([], len(HOSTILE_DUMPS))
    assert pyarrow.dataset.dataset(folder / "data").count_rows() == found.rows
    with duckdb.connect() as connection:
        rows = connection.read_parquet(f"{glob.escape(str(folder))}/data/**/*.parquet")
        assert (len(rows), rows.columns) == (found.rows, pq.read_schema(part(folder)).names)


def test_a_record_that_names_files_elsewhere_reads_none_of_them(dataset):
    content = json.loads((dataset / PROVENANCE).read_text())
    outside = {"bytes": 1, "sha256": "0" * 64}
    content["files"] |= {"../secret": outside, "/etc/passwd": outside}
    (dataset / PROVENANCE).write_text(json.dumps(content))
    found = problems(dataset)
    assert found["../secret"] == found["/etc/passwd"] == "is missing"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("none", "must be a folder"),
        (".", "neither a dataset nor a workspace"),
        ("nosuch://x", "nosuch"),
        ("https://me:sesame@127.0.0.1:9/set", "a URL must contain no user, password"),
    ],
)
def test_a_place_without_a_dataset_is_an_error(tmp_path, place, message):
    with pytest.raises(VerifyError, match=message) as caught:
        find_dataset(place if "://" in place else str(tmp_path / place))
    assert "sesame" not in str(caught.value)


@pytest.mark.long
def test_a_server_that_fails_is_not_one_without_the_dataset(bucket, proxy, reach, dataset, monkeypatch):
    for path in tree_files(dataset):
        bucket.write(f"set/{name(dataset, path)}", path.read_bytes())
    reach(proxy.url)
    proxy.failing = 0.5
    assert problems(f"{bucket.url}/set") == {}
    bucket.write("set/data/more", b"x")
    assert set(problems(f"{bucket.url}/set")) == {"data/more"}
    assert proxy.failed
    proxy.kill()
    monkeypatch.setattr(errors, "PATIENCE_SECONDS", 0.5)
    with pytest.raises(VerifyError, match="check that the server is up"):
        find_dataset(f"{bucket.url}/set")
