"""Ask a trained model the questions of lm-eval's tasks, and measure the gold answers in bits.

A small model's accuracy is mostly noise; the bits per byte that it gives to the right answers predict what a larger
model will know (https://arxiv.org/abs/2508.13144).
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.probe.language_model import quiet
from fineweb_mask.models.witness.tokens import END

if TYPE_CHECKING:
    from lm_eval.tasks import TaskManager
    from tokenizers import Tokenizer
    from transformers import LlamaForCausalLM

BATCH = 16  # questions that are computed at one time


class Answers(NamedTuple):
    """The gold answers to n questions."""

    tasks: list[str]  # (n,), the name under which the question was asked for
    bits: NDArray[np.float64]  # (n,)
    sizes: NDArray[np.int64]  # (n,), bytes of the answer
    correct: NDArray[np.bool_]  # (n,), whether the gold answer is the likeliest


def save_model(model: "LlamaForCausalLM", tokenizer: "Tokenizer", folder: Path) -> None:
    """Save a model and its tokenizer as transformers loads them."""
    from transformers import PreTrainedTokenizerFast

    model.save_pretrained(str(folder))
    special = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special)  # type: ignore[no-untyped-call]
    wrapped.save_pretrained(str(folder))


def check_tasks(tasks: Sequence[str], folder: Path | None) -> None:
    """Check that lm-eval knows all tasks.

    Raises
    ------
    SettingsError
        If one is not known.
    """
    with _quiet():
        known = set(_manager(folder).all_tasks)
    if unknown := sorted(set(tasks) - known):
        raise SettingsError(f"tasks: lm-eval has no task {unknown[0]!r}; `lm-eval ls tasks` lists them")


def answer(model_folder: Path, tasks: Sequence[str], *, folder: Path | None, context: int, device: str) -> Answers:
    """Answer all questions of the tasks, without examples before them.

    Parameters
    ----------
    model_folder
        What `save_model` wrote.
    tasks
        Names of lm-eval's tasks or groups of tasks.
    folder
        Your task files; None takes lm-eval's only.
    context
        Most tokens of a question and its answer.
    device
        `cpu`, or a GPU.

    Raises
    ------
    SettingsError
        If a task has questions without a gold answer, such as one that a program checks.
    """
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    with _quiet():
        model = HFLM(pretrained=str(model_folder), batch_size=BATCH, max_length=context, device=device, dtype="auto")
        found = simple_evaluate(
            model=model,
            tasks=list(tasks),
            num_fewshot=0,
            bootstrap_iters=0,
            log_samples=True,
            task_manager=_manager(folder),
            verbosity="ERROR",
        )
    rows = [
        (_asked_as(name, tasks), *_gold(name, sample))
        for name, samples in sorted(found["samples"].items())
        for sample in sorted(samples, key=lambda sample: int(sample["doc_id"]))
    ]
    names, bits, sizes, correct = zip(*rows, strict=True)
    return Answers(list(names), np.array(bits), np.array(sizes, dtype=np.int64), np.array(correct))


def _manager(folder: Path | None) -> "TaskManager":
    from lm_eval.tasks import TaskManager

    return TaskManager(include_path=None if folder is None else str(folder))


def _asked_as(name: str, tasks: Sequence[str]) -> str:
    """Return the task, or the group of tasks such as mmlu, that a question was asked for."""
    asked = [task for task in tasks if name == task or name.startswith(f"{task}_")]
    return max(asked, key=len, default=name)


def _gold(task: str, sample: dict[str, Any]) -> tuple[float, int, bool]:
    """Return the bits and bytes of a question's gold answer, and whether it is the likeliest."""
    answers, found = sample["arguments"], sample["filtered_resps"]
    target = str(sample["target"])
    if len(answers) > 1 and not target.isdecimal():
        raise SettingsError(
            f"tasks: a question of {task!r} has several answers, and {target!r} is not the place of one: leave "
            "this task out"
        )
    gold = int(target) if len(answers) > 1 else 0
    if len(answers[gold]) < 2 or not isinstance(answers[gold][1], str) or not isinstance(found[gold], tuple | list):
        raise SettingsError(
            f"tasks: the questions of {task!r} have no gold answer whose bits could be counted: leave this task out"
        )
    likelihoods = [float(one[0]) for one in found]
    return -likelihoods[gold] / math.log(2), len(answers[gold][1].encode()), likelihoods[gold] == max(likelihoods)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep lm-eval, and the libraries that it loads models and data with, from writing bars and advice."""
    import datasets

    had_bars = datasets.are_progress_bars_disabled() is False
    datasets.disable_progress_bars()
    try:
        with quiet():
            yield
    finally:
        if had_bars:
            datasets.enable_progress_bars()
