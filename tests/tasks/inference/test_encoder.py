"""The encoder is loaded once for all shards."""

from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.tasks.inference.encoder import loaded_encoder


def test_the_last_encoder_stays_loaded_and_one_of_another_content_or_settings_is_another(built):
    def loaded(fingerprint="", **settings):
        model = built.embedding_model.model_copy(update={"fingerprint": fingerprint})
        return loaded_encoder(built.workspace, model, EmbeddingSettings(static_dimensions=16, **settings))

    first = loaded()
    assert loaded() is first
    assert loaded("other") is not first
    assert loaded("other", prompt="x") is not loaded("other")
