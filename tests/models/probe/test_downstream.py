"""Downstream tasks: the bits of the gold answers are those of a plain sum over their tokens."""

import math

import numpy as np
import pytest
import torch

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.probe import downstream
from fineweb_mask.models.probe.downstream import answer, check_tasks, save_model
from fineweb_mask.models.probe.language_model import make_model
from fineweb_mask.models.probe.settings import PREDICTIVE_TASKS, PRESETS
from fineweb_mask.models.witness.tokens import train_tokenizer
from tests.models.probe.questions import QUESTIONS, write_task

pytestmark = pytest.mark.filterwarnings("ignore")  # of lm-eval and what it loads
SETTINGS = PRESETS["cpu"].model_copy(update={"hidden_size": 32, "layers": 1, "heads": 2, "intermediate_size": 32})


@pytest.fixture(scope="module")
def offline():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield


@pytest.mark.long
def test_gold_answers_are_measured_token_by_token(tmp_path, offline, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    tokenizer = train_tokenizer([question["question"] + " ".join(question["choices"]) for question in QUESTIONS], 300)
    torch.manual_seed(0)
    model = make_model(SETTINGS, 300)
    save_model(model, tokenizer, tmp_path / "model")
    folder = write_task(tmp_path / "tasks")
    check_tasks(["small_questions"], folder)
    found = answer(tmp_path / "model", ["small_questions"], folder=folder, context=64, device="cpu")
    assert found.tasks == ["small_questions"] * len(QUESTIONS)
    bits, correct = [], []
    for question in QUESTIONS:
        before = tokenizer.encode(f"Question: {question['question']}\nAnswer:", add_special_tokens=False).ids
        losses = []
        for choice in question["choices"]:
            whole = tokenizer.encode(
                f"Question: {question['question']}\nAnswer: {choice}", add_special_tokens=False
            ).ids
            with torch.inference_mode():
                chances = model(input_ids=torch.tensor([whole])).logits[0].double().log_softmax(-1)
            losses.append(
                -sum(float(chances[at - 1, whole[at]]) for at in range(len(before), len(whole))) / math.log(2)
            )
        bits.append(losses[question["answer"]])
        correct.append(losses[question["answer"]] == min(losses))
    assert found.bits == pytest.approx(bits, rel=1e-4)
    assert found.correct.tolist() == correct
    sizes = [len(f" {question['choices'][question['answer']]}".encode()) for question in QUESTIONS]
    assert np.array_equal(found.sizes, sizes)


def test_a_gold_answer_that_is_not_among_the_places_is_an_error():
    """It is not measured as the first answer."""
    sample = {"arguments": [("Q", " a"), ("Q", " b")], "filtered_resps": [(-1.0, True), (-2.0, False)], "target": "b"}
    with pytest.raises(SettingsError, match="'b' is not the place of one"):
        downstream._gold("spelled", sample)
    assert downstream._gold("placed", sample | {"target": "1"})[0] == pytest.approx(2 / math.log(2))


def test_a_question_belongs_to_the_task_with_the_longest_name():
    assert downstream._asked_as("mmlu_pro_math", ["mmlu", "mmlu_pro"]) == "mmlu_pro"
    assert downstream._asked_as("mmlu_anatomy", ["mmlu", "mmlu_pro"]) == "mmlu"


@pytest.mark.long
def test_tasks_that_lm_eval_does_not_know_are_named():
    check_tasks(PREDICTIVE_TASKS, None)
    with pytest.raises(SettingsError, match="nosuch"):
        check_tasks(["arc_easy", "nosuch"], None)
