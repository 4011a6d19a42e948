"""Embeddings: unit vectors row by row beside the documents, bad ones null."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from fineweb_mask.models.embedding.load import load_encoder
from fineweb_mask.models.embedding.static import StaticModel
from fineweb_mask.models.errors import ModelError
from fineweb_mask.models.schemas import embeddings_schema
from fineweb_mask.models.settings import EmbeddingSettings, IngestSettings, SourceSettings
from fineweb_mask.tasks import embed, ingest
from fineweb_mask.tasks.inference.model_files import ModelFolder, ModelNotFoundError
from fineweb_mask.tasks.source.discovery import discover
from fineweb_mask.tasks.workspace.references import StageFile
from fineweb_mask.tasks.workspace.stage_parquet import duplicate_rows
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import embed_job, ingest_job

WEIGHTS = {"[UNK]": (0.0, 0.0), "red": (3.0, 0.0), "blue": (0.0, 2.0), "void": (0.0, 0.0), "wild": (np.nan, 1.0)}


def folder_of(given: EmbeddingSettings) -> ModelFolder:
    model = embed.resolve_encoder(given)
    assert model is not None
    return model


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """A model of five words, of which some have no usable vector."""
    tokenizer = Tokenizer(WordLevel({word: index for index, word in enumerate(WEIGHTS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    folder = tmp_path_factory.mktemp("model") / "colours"
    folder.mkdir()
    StaticModel(tokenizer, np.array(list(WEIGHTS.values()), dtype=np.float32)).save(folder)
    return folder


@pytest.fixture
def ingested(tmp_path, make_parquet, make_document):
    def of(texts: list[str]) -> StageFile:
        path = make_parquet(tmp_path / "a.parquet", [make_document(i, text=text) for i, text in enumerate(texts)])
        source = SourceSettings(path=str(path))
        [shard] = discover(source)
        return ingest.ingest(ingest_job(Workspace(tmp_path), shard, source, IngestSettings(min_chars=1)))

    return of


def settings(model: Path | str = "static", **changes: Any) -> EmbeddingSettings:
    return EmbeddingSettings(model=str(model), **changes)


def vectors(table: pa.Table) -> np.ndarray:
    column = table["embedding"].combine_chunks()
    return column.flatten().to_numpy(zero_copy_only=False).astype(np.float32).reshape(-1, column.type.list_size)


def test_vectors_are_of_unit_length_and_of_their_own_text_of_all_documents_but_duplicates(built):
    encoder = load_encoder(str(built.workspace.root / built.embedding_model.path), built.recipe.embedding)
    for shard in built.selection_shards:
        documents, embeddings, table = shard.documents, shard.embeddings, built.read(shard.embeddings)
        assert table.schema.equals(embeddings_schema(16))
        kept = np.setdiff1d(np.arange(documents.rows), duplicate_rows(built.workspace, shard.duplicates))
        assert table["row"].to_pylist() == kept.tolist()
        assert table["embedding"].null_count == 0 == embeddings.details["bad_vectors"]
        assert embeddings.details["dimensions"] == 16
        assert np.linalg.norm(vectors(table), axis=1) == pytest.approx(1.0, abs=2e-3)
        texts = built.read(documents)["text"].take(kept).to_pylist()
        alone = np.concatenate([encoder.encode([text]).vectors for text in texts])
        assert np.abs(vectors(table) - alone).max() < 2e-3
        assert len(np.unique(vectors(table), axis=0)) == len(texts)


def test_equal_bytes_again(copied):
    path = copied.workspace.resolve(copied.embeddings[0])
    before = path.read_bytes()
    path.unlink()
    given = copied.embedding_model, copied.recipe.embedding
    assert not embed.embed(embed_job(copied.workspace, copied.documents[0], *given)).cached
    assert path.read_bytes() == before


def test_bad_vectors_are_null_and_counted(tmp_path, ingested, colours):
    documents = ingested(["red red", "void", "blue", "wild red", "¿¡", "red blue"])

    def embedded(**changes: Any) -> tuple[StageFile, pa.Table]:
        given = settings(colours, **changes)
        file = embed.embed(embed_job(Workspace(tmp_path), documents, folder_of(given), given))
        return file, pq.read_table(tmp_path / file.path)

    file, table = embedded()
    assert table["row"].to_pylist() == [0, 1, 2, 3, 4, 5]
    assert [value is None for value in table["embedding"].to_pylist()] == [False, True, False, True, True, False]
    assert file.details["bad_vectors"] == 3
    length = np.hypot(1.5, 1.0)
    assert vectors(table) == pytest.approx(np.array([[1, 0], [0, 1], [1.5 / length, 1 / length]]), abs=1e-3)
    assert vectors(embedded(max_tokens=1)[1])[-1] == pytest.approx([1, 0], abs=1e-3)
    assert vectors(embedded(prompt="blue ")[1])[-1][1] > vectors(table)[-1][1] + 0.01


def test_the_fingerprint_follows_the_model_s_content(tmp_path, colours, built):
    moved = shutil.copytree(colours, tmp_path / "moved")
    first, same = (folder_of(settings(folder)) for folder in (colours, moved))
    assert first.fingerprint == same.fingerprint
    weights = next(moved.rglob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    given = (first, {}), (folder_of(settings(moved)), {}), (first, {"prompt": "x"}), (first, {"max_tokens": 9})
    jobs = [embed_job(built.workspace, built.documents[0], model, settings(**changes)) for model, changes in given]
    assert len({job.key for job in jobs}) == 4


def test_vectors_do_not_depend_on_the_documents_that_are_tokenised_together(tmp_path, ingested, colours):
    documents = ingested([f"{text} {number}" for number in range(3) for text in ("red", "blue", "red blue", "void")])
    given = settings(colours)
    job = embed_job(Workspace(tmp_path), documents, folder_of(given), given)
    whole = tmp_path / embed.embed(job).path
    together = whole.read_bytes()
    whole.unlink()
    assert embed.embed(job.model_copy(update={"chunk_documents": 5})).details["bad_vectors"] == 3
    assert whole.read_bytes() == together


def test_a_folder_that_is_no_model_is_known_before_any_work_and_a_pickled_one_refused(tmp_path, colours, ingested):
    folder = shutil.copytree(colours, tmp_path / "model")
    embed.resolve_encoder(settings(folder))
    for missing, pattern in (("model.safetensors", r"\*\.safetensors"), ("modules.json", r"modules\.json")):
        next(folder.rglob(missing)).unlink()
        message = rf"embedding\.model: the folder .* has no {pattern}: it must be a sentence-transformers model"
        with pytest.raises(ModelNotFoundError, match=message):
            embed.resolve_encoder(settings(folder))
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    given = settings(folder)
    pickled = ModelFolder(path=str(folder), fingerprint="pickled")
    with pytest.raises(ModelError, match="embedding model"):
        embed.embed(embed_job(Workspace(tmp_path), ingested(["red"]), pickled, given))
    assert embed.resolve_encoder(settings("static")) is None
