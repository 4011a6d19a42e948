"""Save and load a model of one vector per token in the files of sentence-transformers, whose import takes seconds.

The folder is what `SentenceTransformer.save_pretrained` writes for a `StaticEmbedding`, and is loaded by it, too.
"""

import json
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from tokenizers import Tokenizer

MODULES, CONFIG = "modules.json", "config_sentence_transformers.json"
WEIGHTS, TOKENIZER = "model.safetensors", "tokenizer.json"
WEIGHT = "embedding.weight"
KNOWN = {"__version__", "default_prompt_name", "model_type", "prompts", "similarity_fn_name"}
"""Entries of the configuration; with others, such as fewer dimensions, sentence-transformers must load the model."""


class StaticModel(NamedTuple):
    """A tokenizer, one vector per token, and texts that go before others."""

    tokenizer: Tokenizer
    weights: NDArray[np.float32]  # (vocabulary, dimensions)
    prompts: Mapping[str, str] = {"document": "", "query": ""}  # by name
    default_prompt: str | None = None  # its name

    def save(self, folder: Path) -> None:
        """Write the files into a folder that exists."""
        import torch  # for its version alone: that of the package lacks what it was built for

        of = "sentence_transformers.sentence_transformer.modules.static_embedding.StaticEmbedding"
        versions = {name: version(name) for name in ("sentence_transformers", "transformers")}
        config = {
            "__version__": {"pytorch": str(torch.__version__), **versions},
            "default_prompt_name": self.default_prompt,
            "model_type": "SentenceTransformer",
            "prompts": self.prompts,
            "similarity_fn_name": "cosine",
        }
        (folder / MODULES).write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": of}], indent=2))
        (folder / CONFIG).write_text(json.dumps(config, indent=2))
        safetensors.numpy.save_file({WEIGHT: np.ascontiguousarray(self.weights)}, folder / WEIGHTS)
        self.tokenizer.save(str(folder / TOKENIZER))

    @classmethod
    def load(cls, model: str) -> Self | None:
        """Load a folder with a `StaticEmbedding` alone; None for any other model."""
        folder = Path(model)
        if not all((folder / name).is_file() for name in (MODULES, CONFIG, WEIGHTS, TOKENIZER)):
            return None
        modules: list[dict[str, Any]] = json.loads((folder / MODULES).read_text())
        config: dict[str, Any] = json.loads((folder / CONFIG).read_text())
        kinds = [(one.get("path"), str(one.get("type")).rpartition(".")[2]) for one in modules]
        if kinds != [("", "StaticEmbedding")] or not config.keys() <= KNOWN:
            return None
        found = safetensors.numpy.load_file(folder / WEIGHTS)
        if found.keys() != {WEIGHT} or found[WEIGHT].dtype != np.float32:
            return None
        tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
        return cls(tokenizer, found[WEIGHT], config.get("prompts") or {}, config.get("default_prompt_name"))
