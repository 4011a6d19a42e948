"""Measure how fast a dataset is exported as tokens, beside datatrove's own tokenizer pipeline.

    python -m benchmarks.export web_mix.parquet --copies 4

Both read the same Parquet files of texts and write Megatron-LM's and nanotron's files by datatrove's steps with the
same tokenizer, a byte-level BPE of 32,000 tokens that is trained on the texts; each on all cores, as the tokenizers
library uses them. As many tokens must be written. The export also puts all documents in random order first and writes a
record with the SHA-256 of every file. Of several runs, the least time counts.
"""

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer as Trained
from tokenizers import models, pre_tokenizers, trainers

from benchmarks.measuring import least_seconds
from benchmarks.tables import show
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.dataset.verify import find_dataset
from fineweb_mask.tasks.export import ExportJob, export
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageKey

VOCABULARY = 32_000


def train(texts: list[str], path: Path) -> None:
    """Save a tokenizer of these texts."""
    tokenizer = Trained(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.save(str(path))


def make_dataset(texts: list[str], folder: Path) -> None:
    """Write a dataset of these texts, in one file of row groups of 1,000 documents."""
    (folder / "data").mkdir(parents=True)
    ids = [str(row) for row in range(len(texts))]
    pq.write_table(pa.table({"text": texts, "id": ids}), folder / "data" / "part-00000.parquet", row_group_size=1_000)
    key = StageKey(stage="materialize", version=1, settings="", inputs="")
    write_manifest(folder / "provenance.json", key, [folder / "data" / "part-00000.parquet"], {"rows": len(texts)})


def datatrove(dataset: Path, tokenizer: Path, kind: str, folder: Path) -> None:
    """Run datatrove's local pipeline."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import ParquetReader
    from datatrove.pipeline.tokens import DocumentTokenizer, MegatronDocumentTokenizer

    step = (
        MegatronDocumentTokenizer(str(folder / "out"), None, str(tokenizer), "<|endoftext|>")
        if kind == "megatron"
        else DocumentTokenizer(str(folder / "out"), str(tokenizer), eos_token="<|endoftext|>", shuffle_documents=False)
    )
    LocalPipelineExecutor(
        [ParquetReader(str(dataset / "data")), step], tasks=1, logging_dir=str(folder / "logs"), skip_completed=False
    ).run()


def token_bytes(work: Callable[[Path], None]) -> int:
    """Write files into a temporary folder, and return the bytes of those with tokens."""
    with tempfile.TemporaryDirectory() as folder:
        work(Path(folder))
        return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.suffix in {".bin", ".ds"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="a Parquet file with a column `text`")
    parser.add_argument("--copies", type=int, default=1, help="how often its texts are taken")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["LOGURU_LEVEL"] = "ERROR"
    texts = [text for text in pq.read_table(arguments.file, columns=["text"])["text"].to_pylist() if text]
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        train(texts[::5], work / "tokenizer.json")
        make_dataset(texts * arguments.copies, work / "dataset")
        found = find_dataset(str(work / "dataset"))
        for kind in ("megatron", "nanotron"):
            settings = ExportSettings(format=kind, tokenizer=str(work / "tokenizer.json"))
            planned = ExportJob(root=str(work), dataset=found.manifest.content, place=found.url, settings=settings)

            def whole(folder: Path, job: ExportJob = planned) -> None:
                export(job.model_copy(update={"elsewhere": str(folder / "export")}))

            def theirs(folder: Path, kind: str = kind) -> None:
                datatrove(work / "dataset", work / "tokenizer.json", kind, folder)

            size, ours = least_seconds(partial(token_bytes, whole), arguments.repeats)
            their_size, other = least_seconds(partial(token_bytes, theirs), arguments.repeats)
            if size != their_size:
                raise SystemExit(f"{kind}: {size:,} bytes of tokens, datatrove wrote {their_size:,}")
            million = size / 2 / 1e6
            rows.append([kind, f"{million / ours:.2f}", f"{million / other:.2f}", f"{other / ours:.2f}"])
    header = ["format", "million tokens/s", "datatrove", "ratio"]
    show(f"{len(texts) * arguments.copies:,} documents", header, rows)


if __name__ == "__main__":
    main()
