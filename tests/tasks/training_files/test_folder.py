import json

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks import export as module
from fineweb_mask.tasks.dataset.output import digest_on_card, record_digest
from fineweb_mask.tasks.export import ExportJob
from fineweb_mask.tasks.training_files import Tokenizer
from fineweb_mask.tasks.workspace.manifest import is_whole, read_manifest

pytest.importorskip("datatrove.pipeline.tokens")


def settings(**changes):
    return ExportSettings(**{"format": "parquet", "file_size": 2**16} | changes)


def export(dataset, folder, one):
    job = job_of(dataset, folder, one)
    module.export(job)
    return read_manifest(folder / "provenance.json"), job


def job_of(dataset, folder, one):
    found, manifest = dataset
    return ExportJob(
        root=str(folder.parent), dataset=manifest.content, place=found.url, settings=one, elsewhere=str(folder)
    )


def test_parquet_is_read_as_nanochat_and_torchtitan_read_it(dataset, texts, tmp_path):
    from datasets import load_dataset
    from datasets.distributed import split_dataset_by_node

    manifest, _ = export(dataset, tmp_path / "a", settings())
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
    train = load_dataset(
        "parquet", data_files=[str(tmp_path / "a" / name) for name in named], split="train", streaming=True
    )
    shares = [split_dataset_by_node(train, rank=rank, world_size=2) for rank in range(2)]  # as torchtitan does
    assert sorted(row["text"] for share in shares for row in share) == sorted(read["train"])
    assert manifest.details["rows"] == len(texts)


@pytest.mark.parametrize("kind", ["parquet", "megatron", "nanotron"])
def test_an_export_has_a_record_of_all_files_and_the_dataset(kind, dataset, texts, tokenizer_file, tmp_path):
    tokens = {} if kind == "parquet" else {"tokenizer": str(tokenizer_file)}
    one = settings(format=kind, **tokens)
    manifest, job = export(dataset, tmp_path / "a", one)
    record = (tmp_path / "a" / "provenance.json").read_bytes()
    assert is_whole(tmp_path / "a" / "provenance.json", manifest)
    assert set(manifest.files) == {path.name for path in (tmp_path / "a").iterdir()} - {"provenance.json"}
    assert manifest.details["dataset"] == dataset[1].content
    card = (tmp_path / "a" / "README.md").read_text()
    assert digest_on_card(card) == record_digest(record)
    assert f"{manifest.details['rows']:,} documents" in card
    if tokens:
        assert manifest.details["tokens"] == sum(len(ids.ids) for ids in Tokenizer(one).loaded.encode_batch(texts))
    assert "$" not in card
    assert str(tmp_path) not in record.decode() + card
    assert job.current().details == manifest.details
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert export(dataset, tmp_path / "b", one)[0].files == manifest.files


def test_settings_dataset_and_tokenizer_are_in_the_key(dataset, tokenizer_file, tmp_path):
    first = settings(format="megatron", tokenizer=str(tokenizer_file))
    moved = tmp_path / "tokenizer.json"
    moved.write_bytes(tokenizer_file.read_bytes())
    job = job_of(dataset, tmp_path / "a", first)

    def with_settings(**changes):
        return job.model_copy(update={"settings": first.model_copy(update=changes)})

    assert with_settings(tokenizer=str(moved), name="b").key == job.key
    moved.write_text(moved.read_text() + " ")
    changes = ({"tokenizer": str(moved)}, {"end_token": "</s>"}, {"seed": 1}, {"format": "nanotron"})
    others = [*(with_settings(**change) for change in changes), job.model_copy(update={"dataset": "y"})]
    assert job.key not in [other.key for other in others]


def test_an_export_replaces_the_last_one_and_nothing_else(dataset, tmp_path):
    export(dataset, tmp_path / "a", settings())
    (tmp_path / ".a.spill").mkdir()  # of a killed export
    _, job = export(dataset, tmp_path / "a", settings(seed=5))
    assert job.current() is not None
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(SettingsError, match="holds something else"):
        export(dataset, tmp_path / "mine", settings())
    assert (tmp_path / "mine" / "notes.txt").read_text() == "mine"
