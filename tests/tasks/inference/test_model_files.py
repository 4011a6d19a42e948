"""Find model files on this machine, and download them with the real hub client from a local hub."""

import struct

import pytest

from fineweb_mask.models.quality.fasttext import CLASSIFIER, HEADER, MAGIC
from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.models.settings.quality import FastTextScorerSettings
from fineweb_mask.tasks.inference.model_files import ModelNotFoundError, loaded_encoder, model_file
from fineweb_mask.tasks.inference.scorers import resolve_model
from fineweb_mask.tasks.workspace.references import file_digest
from tests.tasks.hub_server import HubServer, ask_only

MODEL = struct.pack(HEADER, MAGIC, CLASSIFIER)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with HubServer(tmp_path_factory.mktemp("hub")) as server:
        for branch in ("main", "v1", "refs%2Fpr%2F2"):
            server.write(f"you/model/{branch}", "deep/m.bin", MODEL + branch.encode())
        server.write("you/data/v1", "m.bin", b"beside a dataset")
        yield server


@pytest.fixture(autouse=True)
def hub(server, monkeypatch, tmp_path):
    ask_only(server.url, monkeypatch, tmp_path)
    return server


@pytest.mark.parametrize(
    ("address", "content"),
    [
        ("hf://you/model/deep/m.bin", MODEL + b"main"),
        ("hf://you/model@refs%2Fpr%2F2/deep/m.bin", MODEL + b"refs%2Fpr%2F2"),
        ("hf://datasets/you/data@v1/m.bin", b"beside a dataset"),
    ],
)
def test_a_file_is_downloaded_at_its_revision(address, content):
    assert model_file(address, "model").read_bytes() == content


def test_a_model_on_the_hub_is_known_by_its_content_and_refused_with_another(tmp_path):
    (tmp_path / "m.bin").write_bytes(MODEL + b"v1")
    settings = FastTextScorerSettings(model="hf://you/model@v1/deep/m.bin")
    here, there = resolve_model(FastTextScorerSettings(model=str(tmp_path / "m.bin"))), resolve_model(settings)
    assert here.identity == there.identity
    assert there.fingerprint == file_digest(tmp_path / "m.bin")
    blob = model_file("hf://you/model@v1/deep/m.bin", "model").resolve()
    blob.write_bytes(b"v2")
    with pytest.raises(ModelNotFoundError, match=f"{blob} has not the checksum of the hub: delete it, and run again"):
        resolve_model(settings)
    blob.unlink()
    assert resolve_model(settings).fingerprint == blob.name


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("hf://you/model@v2/deep/m.bin", r"^model: .*`hf download you/model deep/m\.bin --revision v2`$"),
        ("hf://datasets/you/data@v1/n.bin", r"`hf download you/data n\.bin --repo-type dataset --revision v1`$"),
        ("hf://you/none/m.bin", r"^model: 'hf://you/none/m\.bin' cannot be downloaded from the hub: "),
    ],
)
def test_a_file_missing_on_the_hub_is_an_error_with_a_remedy(address, message):
    with pytest.raises(ModelNotFoundError, match="(?s)" + message):
        model_file(address, "model")


@pytest.mark.parametrize("address", ["hf://you/model@v1", "hf://you/mo del/m.bin", "hf://buckets/you/model/m.bin"])
def test_a_malformed_address_is_refused_before_any_request(hub, address):
    before = len(hub.requests)
    message = r"^quality\.scorers\.0\.model: .* An address on the hub must be hf://owner/repository/file, or "
    with pytest.raises(ModelNotFoundError, match=message):
        resolve_model(FastTextScorerSettings(model=address))
    assert len(hub.requests) == before


def test_the_last_encoder_stays_loaded_and_one_of_another_content_or_settings_is_another(built):
    def loaded(fingerprint="", **settings):
        model = built.embedding_model.model_copy(update={"fingerprint": fingerprint})
        return loaded_encoder(built.workspace, model, EmbeddingSettings(static_dimensions=16, **settings))

    first = loaded()
    assert loaded() is first
    assert loaded("other") is not first
    assert loaded("other", prompt="x") is not loaded("other")
