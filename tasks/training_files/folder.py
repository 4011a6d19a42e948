"""Write an export: the training files of a dataset, with a card and a record, which replace the last one.

A killed export resumes from the files that it finished, which wait in a hidden folder beside it.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any

from fineweb_mask.models.errors import FinewebMaskError, SettingsError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.settings.output import TOKENIZED, ExportSettings
from fineweb_mask.tasks.dataset.publish import CARD, PROVENANCE
from fineweb_mask.tasks.dataset.record import write_record
from fineweb_mask.tasks.dataset.verify import Dataset
from fineweb_mask.tasks.storage.atomic import atomic_folder, atomic_write, tree_files
from fineweb_mask.tasks.training_files.order import write_documents
from fineweb_mask.tasks.training_files.streaming import WRITERS, load_package
from fineweb_mask.tasks.training_files.tokens import Tokenized, Tokenizer, check_tokens, write_tokens
from fineweb_mask.tasks.workspace.manifest import Manifest, read_manifest
from fineweb_mask.tasks.workspace.records.runs import code_and_packages
from fineweb_mask.tasks.workspace.references import StageKey, file_digest

EXPORT = "export"
ORDERED = "ordered.json"
"""Written when all documents are in order; names their files."""

READING = {
    "parquet": """\
Parquet with the columns `text` and `id`, row groups of 1,000 documents. nanochat takes the last file for validation
and the others for training; so do the lines below. Also read by torchtitan and by TRL, through `datasets`.

    from datasets import load_dataset
    train = load_dataset("parquet", data_files=$train, split="train", streaming=True)
""",
    "megatron": """\
Tokens for Megatron-LM, NeMo and GPT-NeoX: for each `.idx` and `.bin`, the path without its ending.

    --data-path $prefixes
""",
    "nanotron": """\
Tokens for nanotron: this folder is a `dataset_folder` of its configuration. Also read by datatrove:

    from datatrove.utils.dataset import DatatroveFolderDataset
    data = DatatroveFolderDataset(".", seq_len=2048, token_size=$token_bytes)
""",
    "mds": """\
Shards for MosaicML's streaming, with the columns `text` and `id`.

    from streaming import StreamingDataset
    data = StreamingDataset(local=".", batch_size=1)
""",
    "litdata": """\
Chunks for litdata; a sample is a dictionary with `text` and `id`.

    from litdata import StreamingDataset
    data = StreamingDataset(".")
""",
}
CARD_TEXT = """\
# Training files

$documents documents$tokens $order. They are those of the dataset
whose content has the digest `$dataset`.

$reading"""


def check_format(settings: ExportSettings, where: str) -> None:
    """Check that the tokenizer of a format can be used, and that the package that writes it is installed.

    Raises
    ------
    SettingsError
        If not; the message begins with `where`.
    """
    try:
        if settings.format in TOKENIZED:
            check_tokens(settings)
        elif settings.format in WRITERS:
            load_package(settings.format)
    except FinewebMaskError as error:
        raise SettingsError(f"{where}: {error}") from error


def check_folder(folder: Path) -> None:
    """Check that an export may be written to a folder.

    Raises
    ------
    SettingsError
        If it holds something else, which would be lost.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    manifest = read_manifest(folder / PROVENANCE)
    if manifest is None or manifest.key.stage != EXPORT:
        raise SettingsError(f"{folder} holds something else than an export, and would be replaced: give a new folder")


def write_export(dataset: Dataset, manifest: Manifest, settings: ExportSettings, folder: Path, key: StageKey) -> None:
    """Write the training files of a dataset to a folder, with a card and a record.

    Raises
    ------
    SettingsError
        If the folder holds something else.
    ModelError
        If the tokenizer cannot be used, or a format's package is not installed.
    VerifyError
        If the dataset is not as its record says.
    """
    check_folder(folder)
    unfinished = folder.with_name(f".{folder.name}.{key.tag}")
    for other in folder.parent.glob(f".{folder.name}.*"):
        if other != unfinished and len(other.name) == len(unfinished.name):  # of other settings
            shutil.rmtree(other, ignore_errors=True)
    documents = _ordered(dataset, manifest, settings, unfinished)
    details: dict[str, Any] = {
        "rows": int(manifest.details["rows"]),
        "dataset": manifest.content,
        "settings": settings.model_dump(exclude={"tokenizer"}),
        **code_and_packages(),
    }
    if settings.format in TOKENIZED:
        counts = _tokenized(settings, documents, unfinished)
        tokenizer = Tokenizer(settings)
        details |= {
            "tokens": sum(one.tokens for one in counts),
            "token_bytes": tokenizer.token_bytes,
            "end_token": tokenizer.end_token,
            "tokenizer": settings.tokenizer if "/" not in str(settings.tokenizer) else tokenizer.path.name,
            "tokenizer_sha256": file_digest(tokenizer.path),
        }
    elif settings.format in WRITERS:
        shutil.rmtree(unfinished / "files", ignore_errors=True)
        WRITERS[settings.format](documents, settings, unfinished / "files")
    with atomic_folder(folder) as new:
        source = documents[0].parent if settings.format == "parquet" else unfinished / "files"
        for file in tree_files(source):
            target = new / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            file.replace(target)
        (new / CARD).write_text(_card(settings, new, details), encoding="utf-8")
        write_record(new, key, tree_files(new), details)
    shutil.rmtree(unfinished, ignore_errors=True)


def _ordered(dataset: Dataset, manifest: Manifest, settings: ExportSettings, unfinished: Path) -> list[Path]:
    """Return the files of the documents in order, those of a killed export if they are all there."""
    with_names = unfinished / ORDERED
    if with_names.is_file():
        files = [unfinished / "documents" / name for name in json.loads(with_names.read_text())]
        if all(file.is_file() for file in files):
            return files
    shutil.rmtree(unfinished, ignore_errors=True)
    share = 0.3 if settings.format != "parquet" else 1.0
    files = write_documents(dataset, manifest, settings, unfinished / "documents", (0, share))
    with atomic_write(with_names) as partial:
        partial.write_text(json.dumps([file.name for file in files]))
    return files


def _tokenized(settings: ExportSettings, documents: list[Path], unfinished: Path) -> list[Tokenized]:
    """Write the tokens of each file that has none yet, and return the counts of all."""
    tokenizer, folder = Tokenizer(settings), unfinished / "files"
    folder.mkdir(exist_ok=True)
    written = []
    for path in track_by_size("files tokenized", documents, len(documents), lambda _: 1, part=(0.3, 1)):
        done = unfinished / f"{path.stem}.json"
        if done.is_file():
            written.append(Tokenized(**json.loads(done.read_text())))
            continue
        found = write_tokens(path, tokenizer, settings.format, folder)
        with atomic_write(done) as partial:
            partial.write_text(json.dumps(found._asdict()))
        written.append(found)
    return written


def _card(settings: ExportSettings, folder: Path, details: Mapping[str, Any]) -> str:
    names = sorted(file.name for file in tree_files(folder))
    reading = Template(READING[settings.format]).substitute(
        train=json.dumps([name for name in names if name.endswith(".parquet")][:-1]),
        prefixes=" ".join(name.removesuffix(".idx") for name in names if name.endswith(".idx")),
        token_bytes=details.get("token_bytes", ""),
    )
    tokens = (
        f" of {details['tokens']:,} tokens, each with a `{details['end_token']}` at its end,"
        if "tokens" in details
        else ""
    )
    return Template(CARD_TEXT).substitute(
        documents=f"{details['rows']:,}",
        tokens=tokens,
        dataset=details["dataset"],
        order=f"in random order (seed {settings.seed})" if settings.shuffle else "in the order of the dataset's files",
        reading=reading,
    )
