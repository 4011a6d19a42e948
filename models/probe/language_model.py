"""Train a small Llama on packed tokens with `transformers.Trainer`, and measure it on held-out documents.

A loss is the mean over the last few checkpoints, which is less noisy than the last one alone
(https://arxiv.org/abs/2508.13144). A training that was interrupted resumes from its last checkpoint.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import logging

from fineweb_mask.models.forward.device import compute_dtype
from fineweb_mask.models.probe.packing import IGNORED, DocumentStarts, PackedSequences, padded
from fineweb_mask.models.probe.settings import Preset
from fineweb_mask.models.runtime.progress import track
from fineweb_mask.models.witness.tokens import PackedTokens

CHECKPOINTS = 10  # per training; only the last is kept
LOGGED = 50  # losses of a training that are recorded
SPACING = 0.02  # between the last checkpoints that are measured, as a share of all steps
EVALUATION_BATCH = 4  # times the sequences of a training batch


class Trained(NamedTuple):
    """What one training found."""

    bits: NDArray[np.float64]  # (documents,): loss of each held-out document, the mean over the last checkpoints
    losses: list[tuple[float, float]]  # tokens seen, and the training's loss there in nats per token
    parameters: int
    tokens: int


def make_model(preset: Preset, vocabulary: int) -> LlamaForCausalLM:
    """Return an untrained model of a preset's size; its weights come from torch's global seed."""
    config = LlamaConfig(
        vocab_size=math.ceil(vocabulary / 64) * 64,
        hidden_size=preset.hidden_size,
        intermediate_size=preset.intermediate_size,
        num_hidden_layers=preset.layers,
        num_attention_heads=preset.heads,
        max_position_embeddings=preset.context,
        tie_word_embeddings=preset.tied,
        initializer_range=preset.first_weights,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config)


def steps_of(preset: Preset, tokens: int) -> int:
    """Return the number of training steps on so many tokens."""
    return max(1, tokens // (preset.batch * preset.context))


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers from writing bars and advice on the terminal."""
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


@quiet()
def train(
    preset: Preset,
    vocabulary: int,
    tokens: PackedTokens,
    held_out: DocumentStarts,
    *,
    n_tokens: int,
    seed: int,
    folder: Path,
    device: str,
    keep: Callable[[LlamaForCausalLM], None] | None = None,
    start: Path | None = None,
) -> Trained:
    """Train one model and measure it.

    Parameters
    ----------
    preset
        The model and how it is trained.
    vocabulary
        Tokens of the tokenizer.
    tokens
        The documents of the arm.
    held_out
        The held-out documents.
    n_tokens
        Tokens to train on.
    seed
        Decides the first weights, which documents are read, and their order.
    folder
        For checkpoints; one that is there is continued from.
    device
        `cpu`, or a GPU.
    keep
        Called with the trained model, to save it.
    start
        Folder of a model that the training goes on from, at a constant and small rate; None starts from random weights.
    """
    steps = steps_of(preset, n_tokens)
    set_seed(seed)
    model = (
        make_model(preset, vocabulary)
        if start is None
        else LlamaForCausalLM.from_pretrained(str(start), dtype=torch.float32, trust_remote_code=False)
    )
    dtype, on_gpu = compute_dtype("auto", device), device.startswith("cuda")
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=preset.micro_batch,
        gradient_accumulation_steps=preset.batch // preset.micro_batch,
        max_grad_norm=1.0,
        bf16=dtype == torch.bfloat16,
        torch_compile=on_gpu,
        use_cpu=not on_gpu,
        seed=seed,
        data_seed=seed,
        logging_steps=max(1, steps // LOGGED),
        save_strategy="steps",
        save_steps=max(1, math.ceil(steps / CHECKPOINTS)),
        save_total_limit=1,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=on_gpu,
        remove_unused_columns=False,
        **_schedule(preset, steps, is_fork=start is not None),
    )
    if on_gpu:
        arguments._n_gpu = 1
    optimizer = torch.optim.AdamW(  # all weights decay, norms as well: the Trainer's own choice leaves those out
        model.parameters(),
        lr=preset.learning_rate * (1 if start is None else preset.fork_learning_rate),
        betas=(0.9, preset.beta2),
        weight_decay=preset.weight_decay,
        fused=True,
    )
    measured = _Measured(model, held_out, folder, preset, steps, dtype)
    folder.mkdir(parents=True, exist_ok=True)
    last: str | None = get_last_checkpoint(str(folder))  # type: ignore[no-untyped-call]
    try:
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=PackedSequences(tokens, preset.context, steps * preset.batch * preset.context, seed),
            data_collator=padded,
            callbacks=[measured],
            optimizers=(optimizer, None),
        )
        trainer.remove_callback(PrinterCallback)  # its lines would go to the terminal
        trainer.train(resume_from_checkpoint=last)
        if keep is not None:
            keep(model)
    finally:
        measured.close()
    history = [(entry["step"], entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]
    return Trained(
        bits=measured.mean(),
        losses=[(step * preset.batch * preset.context, loss) for step, loss in history],
        parameters=model.num_parameters(),
        tokens=steps * preset.batch * preset.context,
    )


def _schedule(preset: Preset, steps: int, *, is_fork: bool) -> dict[str, Any]:
    """Return how the learning rate changes: that of a model that goes on from a common start does not."""
    if is_fork:
        return {"lr_scheduler_type": "constant", "lr_scheduler_kwargs": {}, "warmup_steps": 0}
    warmup = round(preset.warmup_steps * (steps if preset.warmup_steps < 1 else 1))
    return {
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr_rate": preset.last_learning_rate},
        "warmup_steps": min(warmup, steps // 10),
    }


@torch.inference_mode()
def losses_in_bits(
    model: LlamaForCausalLM, held_out: DocumentStarts, *, batch: int, dtype: torch.dtype
) -> NDArray[np.float64]:
    """Return the loss of every held-out document in bits: (documents,) float64.

    Parameters
    ----------
    model
        The language model; its training mode is restored.
    held_out
        The documents.
    batch
        Sequences that are computed at one time.
    dtype
        Type that the model computes in.
    """
    was_training, device = model.training, model.device
    model.train(mode=False)
    bits = np.zeros(len(held_out.sizes))
    for start in range(0, len(held_out), batch):
        rows = padded([held_out[index] for index in range(start, min(start + batch, len(held_out)))])
        ids, labels = rows["input_ids"].to(device), rows["labels"][:, 1:].to(device)
        counts = labels != IGNORED
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            hidden = model.model(input_ids=ids).last_hidden_state[:, :-1]
            logits = model.lm_head(hidden[counts])  # without the padding
        losses = torch.zeros(labels.shape, device=device)
        losses[counts] = torch.nn.functional.cross_entropy(logits.float(), labels[counts], reduction="none")
        of_rows = losses.sum(1).double().cpu().numpy() / math.log(2)
        bits[held_out.document[start : start + batch]] = of_rows
    model.train(was_training)
    return bits


class _Measured(TrainerCallback):
    """Measures the last checkpoints of a training, and tells its progress after every step."""

    def __init__(
        self,
        model: LlamaForCausalLM,
        held_out: DocumentStarts,
        folder: Path,
        preset: Preset,
        steps: int,
        dtype: torch.dtype,
    ) -> None:
        self._model, self._held_out, self._folder = model, held_out, folder
        self._batch, self._dtype = EVALUATION_BATCH * preset.micro_batch, dtype
        spacing = max(1, round(SPACING * steps))
        self._at = sorted({step for index in range(preset.evaluations) if (step := steps - index * spacing) > 0})
        self._progress = track("steps", range(steps + 1), part=(0, 1))
        next(self._progress, None)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401, ARG002
        """Tell the steps that were done before."""
        for _ in range(state.global_step):
            self.tell()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ANN401, ARG002
        """Tell a step; after the last ones, write the loss of every held-out document."""
        self.tell()
        if state.global_step in self._at:
            bits = losses_in_bits(self._model, self._held_out, batch=self._batch, dtype=self._dtype)
            path = self._path(state.global_step)
            np.save(path.with_suffix(".partial.npy"), bits)
            os.replace(path.with_suffix(".partial.npy"), path)  # noqa: PTH105

    def tell(self) -> None:
        """Tell that one more step is done; raises StoppedError if a stop was requested."""
        next(self._progress, None)

    def mean(self) -> NDArray[np.float64]:
        """Return the mean of the measured checkpoints."""
        return np.asarray(np.mean([np.load(self._path(step)) for step in self._at], axis=0), dtype=np.float64)

    def close(self) -> None:
        """End the progress, so that other loops of this thread are not counted as part of it."""
        self._progress.close()  # type: ignore[attr-defined]

    def _path(self, step: int) -> Path:
        return self._folder / f"bits-{step}.npy"
