"""Export a dataset as files that trainers read: Parquet, or tokens.

An export is these files, with a card and a record, which replace the last one. A killed export resumes from the files
that it finished, which wait in a hidden folder beside it.
"""

import glob
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from string import Template
from typing import Any, ClassVar

from fineweb_mask.models.errors import FinewebMaskError, SettingsError, WorkspaceError
from fineweb_mask.models.runtime.progress import track_by_size
from fineweb_mask.models.settings.output import ExportSettings
from fineweb_mask.tasks.dataset.output import CARD, write_record
from fineweb_mask.tasks.dataset.verify import Dataset, find_dataset, read_provenance
from fineweb_mask.tasks.outputs import check_output
from fineweb_mask.tasks.storage.atomic import atomic_folder, atomic_write, tree_files
from fineweb_mask.tasks.training_files import Tokenizer, load_module, write_documents, write_tokens
from fineweb_mask.tasks.workspace.job import Dependencies, ProductJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import PROVENANCE, Manifest, is_product
from fineweb_mask.tasks.workspace.records.runs import code_and_packages
from fineweb_mask.tasks.workspace.references import file_digest
from fineweb_mask.tasks.workspace.workspace import TAG

EXPORT, FOLDER = "export", "exports"
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
}
CARD_TEXT = """\
# Training files

$documents documents$tokens $order. They are those of the dataset
whose content has the digest `$dataset`.

$reading"""


class ExportJob(ProductJob):
    """Write the training files of one format."""

    stage: ClassVar[Stage] = Stage(EXPORT, version=2, folders=(FOLDER,))
    dataset: str  # digest of the dataset's content
    place: str  # folder or URL of the dataset
    settings: ExportSettings
    output: str | None = None  # folder of the files, if it is not the workspace's own

    @property
    def name(self) -> str:
        """The name of the export's folder."""
        return self.folder.name

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.workspace.root / FOLDER / self.settings.folder if self.output is None else Path(self.output)

    @property
    def manifest_path(self) -> Path:
        """The record of the files."""
        return self.folder / PROVENANCE

    def depends_on(self) -> Dependencies:
        """Return the settings, and the digests of the dataset and the tokenizer.

        Raises
        ------
        ModelNotFoundError
            If the tokenizer does not exist, or cannot be downloaded.
        """
        inputs = [self.dataset]
        if self.settings.holds_tokens:
            tokenizer = Tokenizer(self.settings)
            inputs += [file_digest(tokenizer.path), tokenizer.end_token]
        return Dependencies(
            settings=self.settings.model_dump(exclude={"name", "tokenizer", "end_token"}), inputs=inputs
        )


@stage_task
def export(job: ExportJob) -> None:
    """Write the files, with a card and a record.

    Raises
    ------
    SettingsError
        If the folder holds something else.
    ModelError
        If the tokenizer cannot be used, or the package that writes tokens is not installed.
    VerifyError
        If the dataset is not as its record says.
    WorkspaceError
        If the dataset is not the one that the job was planned for.
    """
    dataset = find_dataset(job.place)
    manifest = read_provenance(dataset)
    if manifest.content != job.dataset:
        raise WorkspaceError(f"the dataset at {job.place} changed while the run was going on: run again")
    settings, folder = job.settings, job.folder
    check_folder(folder, EXPORT, dataset.url)
    unfinished = folder.with_name(f".{folder.name}.{job.key.tag}")
    for other in folder.parent.glob(f".{glob.escape(folder.name)}.{TAG}"):
        if other != unfinished:  # of other settings
            shutil.rmtree(other, ignore_errors=True)
    documents = _ordered(dataset, manifest, settings, unfinished)
    details: dict[str, Any] = {
        "rows": int(manifest.details["rows"]),
        "dataset": manifest.content,
        "settings": settings.model_dump(exclude={"tokenizer"}),
        **code_and_packages(),
    }
    if settings.holds_tokens:
        tokenizer = Tokenizer(settings)
        details |= {
            "tokens": _tokenized(tokenizer, settings.format, documents, unfinished),
            "token_bytes": tokenizer.token_bytes,
            "end_token": tokenizer.end_token,
            "tokenizer": settings.tokenizer if "/" not in str(settings.tokenizer) else tokenizer.path.name,
            "tokenizer_sha256": file_digest(tokenizer.path),
        }
    with atomic_folder(folder) as new:
        for file in tree_files(unfinished / ("files" if settings.holds_tokens else "documents")):
            file.replace(new / file.name)
        (new / CARD).write_text(_card(settings, new, details), encoding="utf-8")
        write_record(new, job.key, tree_files(new), details)
    shutil.rmtree(unfinished, ignore_errors=True)


def check_format(settings: ExportSettings, where: str) -> None:
    """Check that the tokenizer of a format of tokens can be used, and that the package that writes it is installed.

    Raises
    ------
    SettingsError
        If not; the message begins with `where`.
    """
    try:
        if settings.holds_tokens:
            load_module(settings.format)
            Tokenizer(settings).encode([""])
    except FinewebMaskError as error:
        raise SettingsError(f"{where}: {error}") from error


def check_folder(folder: Path, setting: str, dataset: str) -> None:
    """Check that an export of the dataset at a folder or URL may be written to a folder.

    Raises
    ------
    OutputError
        If something else would be lost, or the folder is in a workspace, but not in its folder of exports.
    """
    check_output(folder, setting, [dataset], replaces=is_product(folder, EXPORT), folder=True, within=FOLDER)


def _ordered(dataset: Dataset, manifest: Manifest, settings: ExportSettings, unfinished: Path) -> list[Path]:
    """Return the files of the documents in order, those of a killed export if they are all there."""
    with_names = unfinished / ORDERED
    if with_names.is_file():
        files = [unfinished / "documents" / name for name in json.loads(with_names.read_text())]
        if all(file.is_file() for file in files):
            return files
    shutil.rmtree(unfinished, ignore_errors=True)
    share = 0.3 if settings.holds_tokens else 1.0
    files = write_documents(dataset, manifest, settings, unfinished / "documents", (0, share))
    with atomic_write(with_names) as partial:
        partial.write_text(json.dumps([file.name for file in files]))
    return files


def _tokenized(tokenizer: Tokenizer, kind: str, documents: list[Path], unfinished: Path) -> int:
    """Write the tokens of each file that has none yet, and return the number of all."""
    folder, tokens = unfinished / "files", 0
    folder.mkdir(exist_ok=True)
    for path in track_by_size("files tokenized", documents, len(documents), lambda _: 1, part=(0.3, 1)):
        done = unfinished / f"{path.stem}.json"
        if not done.is_file():
            written = write_tokens(path, tokenizer, kind, folder)
            with atomic_write(done) as partial:
                partial.write_text(json.dumps({"tokens": written}))
        tokens += json.loads(done.read_text())["tokens"]
    return tokens


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
