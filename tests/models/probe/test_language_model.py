"""The trainer: it learns, repeats itself to the bit, resumes where it was stopped, and measures every document."""

import math

import numpy as np
import pytest
import torch

from fineweb_mask.models.probe import language_model
from fineweb_mask.models.probe.language_model import losses_in_bits, make_model, steps_of, train
from fineweb_mask.models.probe.packing import DocumentStarts
from fineweb_mask.models.probe.settings import PRESETS
from fineweb_mask.models.runtime.progress import reporting_to
from fineweb_mask.models.runtime.stopping import StoppedError, clear_stop_request, request_stop
from fineweb_mask.models.witness.tokens import PackedTokens, train_tokenizer

TINY = PRESETS["cpu"].model_copy(
    update={"hidden_size": 32, "layers": 2, "heads": 2, "intermediate_size": 48, "context": 32, "batch": 4}
    | {"micro_batch": 2, "evaluations": 2, "learning_rate": 1e-2}
)
ANIMALS, PLACES = ("cat", "dog", "hen", "fox"), ("mat", "roof", "farm")
TEXTS = [f"the {animal} sat on the {place} and the {place} was small. " * 6 for animal in ANIMALS for place in PLACES]
VOCABULARY = 320


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, VOCABULARY)


@pytest.fixture(scope="module")
def tokens(tokenizer):
    return PackedTokens.of(TEXTS, tokenizer)


@pytest.fixture(scope="module")
def held_out(tokenizer):
    return DocumentStarts([*TEXTS[:3], "cat", ""], tokenizer, TINY.context)


@pytest.fixture
def run(tokens, held_out, tmp_path):
    def run_one(folder="run", *, seed=0, steps=20, preset=TINY, **others):
        return train(
            preset,
            VOCABULARY,
            tokens,
            held_out,
            n_tokens=steps * preset.batch * preset.context,
            seed=seed,
            folder=tmp_path / folder,
            device="cpu",
            **others,
        )

    return run_one


def test_losses_are_those_of_every_token_by_itself(tokenizer):
    torch.manual_seed(0)
    model = make_model(TINY, VOCABULARY)
    held_out = DocumentStarts([*TEXTS, "cat"], tokenizer, TINY.context)
    found = losses_in_bits(model, held_out, batch=3, dtype=torch.float32)
    expected = np.zeros(len(held_out.sizes))
    for row, document in enumerate(held_out.document):
        ids = held_out[row]["input_ids"]
        with torch.inference_mode():
            chances = model(input_ids=ids[None]).logits[0].double().log_softmax(-1)
        expected[document] -= sum(float(chances[place - 1, ids[place]]) for place in range(1, len(ids))) / math.log(2)
    assert found == pytest.approx(expected, rel=1e-5)
    assert model.training


def test_it_learns_and_its_seed_decides_everything(run, held_out):
    first, again, other = run("a"), run("b"), run("c", seed=1)
    assert np.array_equal(first.bits, again.bits)
    assert not np.array_equal(first.bits, other.bits)
    untrained = math.log2(VOCABULARY) * 3  # bits per byte of a guess, at about 3 bytes for each token or fewer
    assert first.bits.sum() / held_out.sizes.sum() < untrained / 2
    assert first.losses[-1][1] < first.losses[0][1] / 1.5
    assert first.tokens == 20 * TINY.batch * TINY.context == first.losses[-1][0]
    assert first.bits[4] == 0  # of an empty document


def test_a_stopped_training_goes_on_from_its_checkpoint(run, tmp_path, monkeypatch):
    whole = run("whole")
    stopped_at = []

    def stop(*_):
        stopped_at.append(1)
        if len(stopped_at) == 12:
            request_stop()

    original = language_model._Measured.tell
    monkeypatch.setattr(language_model._Measured, "tell", lambda self: (stop(), original(self))[1])
    with pytest.raises(StoppedError):
        run("resumed")
    clear_stop_request()
    kept = {int(path.name.split("-")[1]) for path in (tmp_path / "resumed").glob("checkpoint-*")}
    assert kept
    assert max(kept) <= 12
    resumed = run("resumed")
    assert len(stopped_at) < 12 + 20 + 1  # it did not begin anew
    assert np.array_equal(whole.bits, resumed.bits)


def test_a_fork_goes_on_from_its_start_at_a_small_rate(run, tmp_path):
    start = tmp_path / "start"
    begun = run("begun", steps=60, keep=lambda model: model.save_pretrained(str(start)))
    fork, again, unmoved = run("fork", start=start), run("again", start=start), run("one", start=start, steps=1)
    assert np.array_equal(fork.bits, again.bits)
    assert unmoved.bits.sum() == pytest.approx(begun.bits.sum(), rel=0.05)  # not from random weights
    assert fork.losses[0][1] < begun.losses[0][1] / 1.5
    assert not np.array_equal(fork.bits, unmoved.bits)
    still = TINY.model_copy(update={"fork_learning_rate": 0.0, "weight_decay": 0.0})
    assert np.array_equal(
        run("still", start=start, preset=still).bits, run("as still", start=start, preset=still, steps=5).bits
    )


def test_it_tells_its_steps(run, monkeypatch):
    monkeypatch.setattr("fineweb_mask.models.runtime.progress.SECONDS", 0.0)
    told = []
    with reporting_to(lambda share, steps: told.append((share, *steps))):
        run()
    shares = [share for share, *_ in told]
    assert shares == sorted(shares)
    assert shares[-1] > 0.9
    assert {step.what for _, *steps in told for step in steps} == {"steps"}


@pytest.mark.parametrize(("preset", "millions"), [("cpu", 1.316), ("20m", 19.1), ("150m", 151.9)])
def test_presets_have_the_sizes_of_their_names(preset, millions):
    """DataDecide counts all parameters but those of the first embedding; `cpu` has one embedding, and it is counted."""
    settings = PRESETS[preset]
    with torch.device("meta"):
        model = make_model(settings, settings.vocabulary or 50_280)
    counted = model.num_parameters() - (0 if settings.tied else model.get_input_embeddings().weight.numel())
    assert counted / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize(("preset", "steps"), [("20m", 14_584), ("150m", 38_157)])
def test_presets_train_for_as_many_steps_as_datadecide(preset, steps):
    assert steps_of(PRESETS[preset], PRESETS[preset].tokens) == steps
