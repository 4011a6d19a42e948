"""There is one copy of the model per device, each used by one chunk at a time."""

import threading
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.tasks.inference.encoder_pool import EncoderPool, encoder_pool
from fineweb_mask.tasks.inference.model_files import ModelFolder
from fineweb_mask.tasks.workspace.workspace import Workspace


@pytest.fixture
def loaded(monkeypatch):
    """Three GPUs, as far as the pool can tell."""
    found = []

    def load(model, settings, device):
        found.append(SimpleNamespace(device="cpu" if model.path == "static" else device))
        return found[-1]

    monkeypatch.setattr("fineweb_mask.tasks.inference.encoder_pool.load_copy", load)
    monkeypatch.setattr(
        "fineweb_mask.tasks.inference.encoder_pool.choose_devices", lambda _: [f"cuda:{index}" for index in range(3)]
    )
    return found


def folder(path, content="content"):
    return ModelFolder(path=path, fingerprint=content)


def test_every_device_has_its_own_copy_made_when_it_is_needed(loaded):
    pool = EncoderPool(folder("model"), EmbeddingSettings())
    with pool.encoder() as first:
        assert first is pool.first
        assert [copy.device for copy in loaded] == ["cuda:0"]
        with pool.encoder() as second, pool.encoder() as third:
            assert {first.device, second.device, third.device} == {"cuda:0", "cuda:1", "cuda:2"}
    with ExitStack() as held:
        again = [held.enter_context(pool.encoder()) for _ in range(3)]
        assert len(loaded) == 3
        assert {copy.device for copy in again} == {copy.device for copy in loaded}


@pytest.mark.parametrize(("model", "copies"), [("model", 3), ("static", 1)])
def test_a_caller_waits_until_a_copy_is_free_also_after_an_error(loaded, model, copies):
    """A model on the CPU has one copy."""
    pool = EncoderPool(folder(model), EmbeddingSettings())
    with pytest.raises(ValueError, match="broken"), pool.encoder():
        raise ValueError("broken")
    got = threading.Event()

    def one_more():
        with pool.encoder():
            got.set()

    waiting = threading.Thread(target=one_more)
    with ExitStack() as held:
        for _ in range(copies):
            held.enter_context(pool.encoder())
        waiting.start()
        assert not got.wait(0.1)
    assert got.wait(10)
    waiting.join()
    assert len(loaded) == copies


def test_the_last_model_stays_loaded(loaded, tmp_path):
    workspace, settings = Workspace(tmp_path), EmbeddingSettings()
    pool = encoder_pool(workspace, folder("model"), settings)
    assert encoder_pool(workspace, folder("model"), settings) is pool
    assert encoder_pool(workspace, folder("model", "other content"), settings) is not pool
