"""An export as a folder: as its readers read it, with a record, made once, and in the place of the last one only."""

import json

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import SettingsError, WorkspaceError
from fineweb_mask.tasks.dataset.output import digest_on_card, record_digest
from fineweb_mask.tasks.export import Tokenizer, export
from fineweb_mask.tasks.workspace.manifest import is_whole, read_manifest
from tests.tasks.export.conftest import job_of

pytest.importorskip("datatrove.pipeline.tokens")


def test_parquet_is_read_as_nanochat_and_torchtitan_read_it(dataset, texts, tmp_path):
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    assert export(job_of(dataset, tmp_path / "a")).rows == len(texts)
    paths = sorted((tmp_path / "a").glob("*.parquet"))
    read = {"train": [], "val": []}
    for split in read:  # nanochat: `parquets_iter_batched`, of all files but the last, or of the last
        for path in paths[:-1] if split == "train" else paths[-1:]:
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                read[split] += file.read_row_group(group).column("text").to_pylist()
    assert all(read.values())
    assert sorted(read["train"] + read["val"]) == sorted(texts)
    line = next(line for line in (tmp_path / "a" / "README.md").read_text().splitlines() if "data_files=" in line)
    named = json.loads(line.partition("data_files=")[2].partition(", split")[0])
    assert named == [path.name for path in paths[:-1]]
    files = [str(tmp_path / "a" / name) for name in named]
    train = load_dataset("parquet", data_files=files, split="train", streaming=True)
    shares = [split_dataset_by_node(train, rank=rank, world_size=2) for rank in range(2)]  # as torchtitan does
    assert sorted(row["text"] for share in shares for row in share) == sorted(read["train"])


@pytest.mark.parametrize("kind", ["parquet", "megatron", "nanotron"])
def test_an_export_has_a_record_of_all_files_and_the_dataset(kind, dataset, texts, tokenizer_file, tmp_path):
    tokens = {} if kind == "parquet" else {"tokenizer": str(tokenizer_file)}
    job, again = (job_of(dataset, tmp_path / name, kind, **tokens) for name in "ab")
    export(job)
    path = tmp_path / "a" / "provenance.json"
    manifest = read_manifest(path)
    assert is_whole(path, manifest)
    assert set(manifest.files) == {path.name for path in (tmp_path / "a").iterdir()} - {"provenance.json"}
    assert manifest.details["dataset"] == dataset.manifest.content
    card = (tmp_path / "a" / "README.md").read_text()
    assert digest_on_card(card) == record_digest(path.read_bytes())
    assert f"{manifest.details['rows']:,} documents" in card
    if tokens:
        ids = Tokenizer(str(tokenizer_file)).loaded.encode_batch(texts)
        assert manifest.details["tokens"] == sum(len(one.ids) for one in ids)
    assert "$" not in card
    assert str(tmp_path) not in path.read_text() + card
    assert job.current().details == manifest.details
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    export(again)
    assert read_manifest(tmp_path / "b" / "provenance.json").files == manifest.files


def test_settings_dataset_and_tokenizer_are_in_the_key(dataset, tokenizer_file, tmp_path):
    moved, config = tmp_path / "tokenizer.json", tmp_path / "tokenizer_config.json"
    moved.write_bytes(tokenizer_file.read_bytes())

    def key(kind="megatron", of=dataset, tokenizer=moved, **settings):
        return job_of(of, tmp_path / "a", kind, tokenizer=str(tokenizer), **settings).key

    first = key()
    assert key(tokenizer=tokenizer_file, name="b") == first
    other = dataset._replace(manifest=dataset.manifest.model_copy(update={"details": {}}))
    changed = [key("nanotron"), key(shuffle=False), key(of=other)]
    config.write_text('{"eos_token": "</s>"}')
    changed.append(key())
    config.unlink()
    moved.write_text(moved.read_text() + " ")
    assert first not in [*changed, key()]


def test_it_is_made_once_and_again_where_it_is_damaged(dataset, tmp_path):
    made = (job_of(dataset, tmp_path / "a", name="n", shuffle=shuffle) for shuffle in (True, False))
    job, other = (one.model_copy(update={"elsewhere": None}) for one in made)  # in the workspace
    assert job.folder == tmp_path / "exports" / "n"
    assert [export(one).cached for one in (job, job, other, job)] == [
        False,
        True,
        False,
        False,
    ]  # in each other's place
    path = job.folder / "00000.parquet"
    before = path.read_bytes()
    path.write_bytes(before[:-1] + b"x")
    assert not export(job).cached
    assert path.read_bytes() == before
    with pytest.raises(WorkspaceError, match="changed while the run was going on"):
        export(job.model_copy(update={"dataset": "other"}))


def test_an_export_replaces_the_last_one_and_nothing_else(dataset, tmp_path):
    export(job_of(dataset, tmp_path / "a"))
    (tmp_path / ".a.spill").mkdir()  # of a killed export
    job = job_of(dataset, tmp_path / "a", shuffle=False)
    export(job)
    assert job.current() is not None
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match="holds something else"):
        export(job_of(dataset, tmp_path / "mine"))
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
