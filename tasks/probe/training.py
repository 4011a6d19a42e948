"""Tokenise every arm, train a model for each arm and seed, record its losses on held-out documents and its answers."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fineweb_mask.models.dedup.ngrams import ngram_hashes, places
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.probe.settings import MOST_REPEATS, Preset
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.tasks.inference.model_files import model_file
from fineweb_mask.tasks.probe.held_out import HeldOut
from fineweb_mask.tasks.source.discovery import SourceShard
from fineweb_mask.tasks.storage.atomic import atomic_folder, atomic_write, tree_files
from fineweb_mask.tasks.storage.parquet import read_schema, read_table, write_table
from fineweb_mask.tasks.witness.texts import corpus_texts, texts_of
from fineweb_mask.tasks.workspace.job import Dependencies, FolderJob, Stage, stage_task
from fineweb_mask.tasks.workspace.manifest import write_manifest
from fineweb_mask.tasks.workspace.references import StageFile, file_digest

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    from fineweb_mask.models.witness.tokens import PackedTokens

TOKENIZER_CHARACTERS = 50_000_000
"""Of the text that a tokenizer is trained on; more hardly changes it."""


class TokenizerJob(FolderJob):
    """Train the tokenizer on a part of the corpus that could have been selected, or copy one that exists."""

    stage: ClassVar[Stage] = Stage("tokenizer", version=1, folders=("probe/tokenizer",))
    name: ClassVar[str] = "tokenizer"
    documents: list[StageFile]
    excluded: list[StageFile]  # of the same shards
    vocabulary: int | None  # None copies `path`
    path: str | None
    path_digest: str | None

    def depends_on(self) -> Dependencies:
        """Return the size of the vocabulary and what it is trained on, or the content of the file."""
        if self.vocabulary is None:
            return Dependencies(settings=None, inputs=self.path_digest)
        files = list(zip(self.documents, self.excluded, strict=True))
        return Dependencies(settings=self.vocabulary, inputs=files)

    @property
    def tokenizer_path(self) -> Path:
        """The tokenizer's file."""
        return self.folder / "tokenizer.json"


@stage_task
def make_tokenizer(job: TokenizerJob) -> None:
    """Write `tokenizer.json`."""
    from fineweb_mask.models.witness.tokens import train_tokenizer

    if job.vocabulary is None:
        with atomic_write(job.tokenizer_path) as partial:
            shutil.copyfile(model_file(str(job.path), "tokenizer"), partial)
    else:
        tokenizer = train_tokenizer(_sample(job), job.vocabulary)
        with atomic_write(job.tokenizer_path) as partial:
            tokenizer.save(str(partial))
    write_manifest(job.manifest_path, job.key, [job.tokenizer_path], {})


def _sample(job: TokenizerJob) -> Iterator[str]:
    """Yield texts from an even share of every shard, up to the characters that a tokenizer is trained on."""
    for documents, excluded in zip(job.documents, job.excluded, strict=True):
        left = TOKENIZER_CHARACTERS // len(job.documents)
        out = set(read_table(job.workspace.resolve(excluded))["row"].to_pylist())
        for row, text in enumerate(corpus_texts(job.workspace, documents)):
            if row not in out:
                left -= len(text)
                if left < 0:
                    break
                yield text


class TokensJob(FolderJob):
    """Tokenise the documents of one arm: a selection of the corpus, or a dataset from elsewhere."""

    stage: ClassVar[Stage] = Stage("tokenize", version=2, folders=("probe/tokens",))
    arm: str
    documents: list[StageFile]  # none for a dataset from elsewhere
    masks: list[StageFile]  # of the same shards
    files: list[SourceShard]  # of a dataset from elsewhere
    held_out: StageFile
    tokenizer: StageFile
    shuffled: float = 0.0  # share of the tokens that are exchanged at random

    @property
    def name(self) -> str:
        """The name of the arm."""
        return self.arm

    def depends_on(self) -> Dependencies:
        """Return the fingerprints of the documents, of the selection, and of the tokenizer."""
        pairs = list(zip(self.documents, self.masks, strict=True))
        others = [self.files, self.held_out] if self.files else None
        return Dependencies(settings=self.shuffled or None, inputs=[pairs, others, self.tokenizer])

    @property
    def folder_name(self) -> str:
        """The folder of the tokens, without the tag of the key."""
        return f"{super().folder_name}/{self.arm}"


@stage_task
def tokenize(job: TokensJob) -> None:
    """Write the token ids and the end of every document; `details` count documents and tokens."""
    from fineweb_mask.models.witness.tokens import PackedTokens, load_tokenizer

    shared = [0]
    texts = _elsewhere(job, shared) if job.files else _selected(job)
    packed = PackedTokens.of(texts, load_tokenizer(job.workspace.resolve(job.tokenizer).parent / "tokenizer.json"))
    if job.shuffled:
        packed = packed.shuffled(job.shuffled, seed=0)
    written = []
    for name, values in (("ids", packed.ids), ("ends", packed.ends)):
        path = job.folder / f"{name}.npy"
        with atomic_write(path) as partial, partial.open("wb") as stream:
            np.save(stream, values)
        written.append(path)
    details = {"rows": len(packed.ends), "tokens": len(packed.ids), "shared_words": shared[0]}
    write_manifest(job.manifest_path, job.key, written, details)


def _selected(job: TokensJob) -> Iterator[str]:
    for documents, masks in track("shards tokenised", list(zip(job.documents, job.masks, strict=True)), part=(0, 1)):
        path = job.workspace.resolve(masks)
        repeats = "repeats" if "repeats" in read_schema(path).names else "selected"
        times = read_table(path, columns=[repeats])[repeats].to_pylist()
        for text, count in zip(corpus_texts(job.workspace, documents), times, strict=True):
            yield from [text] * count  # one that is selected without a number is taken once


def _elsewhere(job: TokensJob, shared: list[int]) -> Iterator[str]:
    """Yield the texts of a dataset, without those that share n-grams with held-out documents, which are counted."""
    known = HeldOut.read(job.workspace, job.held_out).ngrams
    for file in track("files tokenised", job.files, part=(0, 1)):
        for text in texts_of([file]):
            if len(places(ngram_hashes(text), known)):
                shared[0] += 1
            else:
                yield text


def read_tokens(job: "TrainJob") -> "PackedTokens":
    """Return the tokens of a training's arm."""
    from fineweb_mask.models.witness.tokens import PackedTokens

    folder = job.workspace.resolve(job.tokens).parent
    return PackedTokens(np.load(folder / "ids.npy", mmap_mode="r"), np.load(folder / "ends.npy"))


class ModelJob(FolderJob):
    """A job on the model of one arm and one seed."""

    arm: str
    seed: int
    preset_name: str

    @property
    def name(self) -> str:
        """The arm and the seed."""
        return f"{self.arm} seed {self.seed}"

    @property
    def folder_name(self) -> str:
        """The folder of the files, without the tag of the key."""
        return f"{super().folder_name}/{self.preset_name}/{self.arm}/seed-{self.seed}"


class TrainJob(ModelJob):
    """Train the model of one arm and one seed, and measure it."""

    stage: ClassVar[Stage] = Stage("train", version=1, folders=("probe/models",))
    uses_gpu: ClassVar[bool] = True
    preset: Preset
    n_tokens: int
    tokens: StageFile
    held_out: StageFile
    tokenizer: StageFile
    keeps_model: bool = False  # to ask it the questions of downstream tasks, or to go on from it
    start: StageFile | None = None  # the training whose model this one goes on from; None starts from random weights

    def depends_on(self) -> Dependencies:
        """Return the model and its training, the tokens, and the held-out documents."""
        preset = self.preset.model_dump(exclude={"micro_batch", "is_verdict", "tasks", "fork_learning_rate"})
        settings = [preset, self.seed, self.n_tokens, *(["keeps the model"] if self.keeps_model else [])]
        inputs = [self.tokens, self.held_out, self.tokenizer]
        if self.start is None:
            return Dependencies(settings=settings, inputs=inputs)
        return Dependencies(settings=[*settings, self.preset.fork_learning_rate], inputs=[*inputs, self.start])


@stage_task
def train_model(job: TrainJob) -> None:
    """Train and measure; `details` hold the training's losses, which are also drawn."""
    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.probe.downstream import save_model
    from fineweb_mask.models.probe.language_model import train
    from fineweb_mask.models.probe.packing import DocumentStarts
    from fineweb_mask.models.witness.tokens import load_tokenizer
    from fineweb_mask.tasks.inference.gpu import gpu_slot

    tokenizer = load_tokenizer(job.workspace.resolve(job.tokenizer).parent / "tokenizer.json")
    texts = HeldOut.read(job.workspace, job.held_out).documents["text"].to_pylist()
    held_out = DocumentStarts(texts, tokenizer, job.preset.context)
    checkpoints = job.folder / "checkpoints"
    device, model_folder = choose_device("auto"), job.folder / "model"
    shutil.rmtree(model_folder, ignore_errors=True)

    def keep(model: "LlamaForCausalLM") -> None:
        with atomic_folder(model_folder) as partial:
            save_model(model, tokenizer, partial)

    with gpu_slot(device):
        trained = train(
            job.preset,
            tokenizer.get_vocab_size(),
            read_tokens(job),
            held_out,
            n_tokens=job.n_tokens,
            seed=job.seed,
            folder=checkpoints,
            device=device,
            keep=keep if job.keeps_model else None,
            start=None if job.start is None else job.workspace.resolve(job.start).parent / "model",
        )
    path = job.folder / "bits.parquet"
    with atomic_write(path) as partial:
        write_table(pa.table({"bits": trained.bits, "bytes": held_out.sizes}), partial)
    details = {
        "losses": [list(point) for point in trained.losses],
        "parameters": trained.parameters,
        "tokens": trained.tokens,
        "device": device.split(":")[0],
    }
    files = [path, *(tree_files(model_folder) if job.keeps_model else [])]
    write_manifest(job.manifest_path, job.key, files, details)
    shutil.rmtree(checkpoints)


def read_bits(workspace_file: Path) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the bits and the bytes of every held-out document, (documents,) each."""
    table = read_table(workspace_file.parent / "bits.parquet")
    return table["bits"].to_numpy(), table["bytes"].to_numpy()


def tokens_for_all(
    preset: Preset, wanted: int | None, tokens: dict[str, StageFile], most_repeats: int = MOST_REPEATS
) -> int:
    """Return how many tokens every model is trained on: as many as asked for, else as the smallest arm has.

    Raises
    ------
    DataError
        If an arm would have to be repeated more often than is useful, or has less than one batch.
    """
    held: dict[str, Any] = {arm: file.details["tokens"] for arm, file in tokens.items()}
    smallest = min(held, key=lambda arm: held[arm])
    if wanted is not None and wanted > most_repeats * held[smallest]:
        more = "more than once" if most_repeats == 1 else f"more than {most_repeats} times"
        raise DataError(
            f"tokens: {wanted:,} would read the {held[smallest]:,} tokens of {smallest} {more}; train on fewer tokens, "
            "or select more"
        )
    found = min(preset.tokens, held[smallest]) if wanted is None else wanted
    step = preset.batch * preset.context
    if found < step:
        raise DataError(
            f"{smallest} has {held[smallest]:,} tokens, one training step takes {step:,}: select more documents"
        )
    return found // step * step


class AnswerJob(ModelJob):
    """Ask the model of one arm and one seed."""

    stage: ClassVar[Stage] = Stage("answer", version=1, folders=("probe/answers",))
    context: int
    tasks: list[str]
    tasks_folder: str | None
    model: StageFile  # of the training, which kept it

    def depends_on(self) -> Dependencies:
        """Return the questions, and the model."""
        own = [] if self.tasks_folder is None else tree_files(Path(self.tasks_folder))
        inputs = [self.model.fingerprint, [file_digest(file) for file in own]]
        return Dependencies(settings=[self.tasks, self.context], inputs=inputs)


@stage_task
def answer_tasks(job: AnswerJob) -> None:
    """Write the bits of every gold answer; `details` hold each task's accuracy."""
    from fineweb_mask.models.forward.device import choose_device
    from fineweb_mask.models.probe.downstream import answer
    from fineweb_mask.tasks.inference.gpu import gpu_slot

    device = choose_device("auto")
    folder = None if job.tasks_folder is None else Path(job.tasks_folder)
    model = job.workspace.resolve(job.model).parent / "model"
    with gpu_slot(device):
        answers = answer(model, job.tasks, folder=folder, context=job.context, device=device)
    shutil.rmtree(job.folder, ignore_errors=True)
    path = job.folder / "answers.parquet"
    table = pa.table({"task": answers.tasks, "bits": answers.bits, "bytes": answers.sizes, "correct": answers.correct})
    with atomic_write(path) as partial:
        write_table(table, partial)
    accuracy = {
        task: float(answers.correct[[one == task for one in answers.tasks]].mean())
        for task in dict.fromkeys(answers.tasks)
    }
    write_manifest(job.manifest_path, job.key, [path], {"accuracy": accuracy})


def read_answers(manifest: Path) -> pa.Table:
    """Return the task, bits and bytes of every gold answer."""
    return read_table(manifest.parent / "answers.parquet")
