"""Tokens and trainings of the arms: exactly what was selected, cached, and never a held-out text."""

import shutil
from typing import Any

import numpy as np
import pytest

from fineweb_mask.models.errors import DataError
from fineweb_mask.models.settings.selection import NearDuplicateSettings
from fineweb_mask.models.settings.selectors.options import QuadmixSettings
from fineweb_mask.models.witness.tokens import END, load_tokenizer
from fineweb_mask.tasks.comparison.variants import select_variant
from fineweb_mask.tasks.probe.held_out import HeldOut
from fineweb_mask.tasks.probe.training import (
    TokensJob,
    make_tokenizer,
    read_bits,
    read_tokens,
    tokenize,
    tokens_for_all,
    train_model,
)
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.workspace.references import StageFile, file_digest

from .conftest import TINY


def texts_of_tokens(probed: Any, arm: str) -> list[str]:
    tokenizer = load_tokenizer(probed.tokenizer_job.tokenizer_path)
    packed = read_tokens(probed.train[arm][0])
    assert (packed.ids[packed.ends - 1] == tokenizer.token_to_id(END)).all()
    return [tokenizer.decode(part[:-1].tolist()) for part in np.split(packed.ids, packed.ends[:-1])]


@pytest.mark.parametrize("arm", ["best", "random"])
def test_tokens_are_those_of_the_selected_documents(probed: Any, arm: str) -> None:
    expected = []
    for job in probed.variants[arm]:
        for shard, mask in zip(job.shards, job.shard_files(), strict=True):
            selected = probed.built.read(mask)["selected"]
            expected += probed.built.read(shard.documents)["text"].filter(selected).to_pylist()
    assert texts_of_tokens(probed, arm) == expected
    assert probed.tokens[arm].rows == len(expected)


def test_a_document_that_is_taken_twice_is_trained_on_twice(probed: Any) -> None:
    [group, *_] = probed.variants["best"]
    settings = group.settings.model_copy(
        update={
            "quadmix": QuadmixSettings(max_repeats=3, omega=0.05),
            "near_duplicates": NearDuplicateSettings(weight=0),
        }
    )
    job = group.model_copy(update={"settings": settings, "selector": "quadmix", "arm": "repeated"})
    select_variant(job)
    masks = list(job.shard_files())
    tokens = TokensJob(
        root=job.root,
        arm="repeated",
        documents=[shard.documents for shard in job.shards],
        masks=masks,
        files=[],
        held_out=probed.held_out,
        tokenizer=probed.tokenizer,
    )
    repeats = np.concatenate([probed.built.read(mask)["repeats"].to_numpy() for mask in masks])
    assert repeats.max() == 3
    assert tokenize(tokens).rows == repeats.sum()


def test_no_arm_holds_a_held_out_text(probed: Any) -> None:
    held_out = set(HeldOut.read(probed.built.workspace, probed.held_out).documents["text"].to_pylist())
    for arm in probed.tokens:
        assert not held_out & set(texts_of_tokens(probed, arm))


def test_a_dataset_from_elsewhere_loses_what_is_held_out(probed: Any) -> None:
    """The user's own held-out file as an arm: the 30 documents of it that are held out, and no others, are dropped."""
    job = TokensJob(
        root=probed.train["best"][0].root,
        arm="theirs",
        documents=[],
        masks=[],
        files=find_files(str(probed.theirs), "path"),
        held_out=probed.held_out,
        tokenizer=probed.tokenizer,
    )
    made = tokenize(job)
    assert (made.rows, made.details["shared_words"]) == (10, 30)
    assert tokenize(job).cached


def test_the_tokenizer_learns_from_what_may_be_selected_only(probed: Any) -> None:
    assert make_tokenizer(probed.tokenizer_job).cached
    tokenizer = load_tokenizer(probed.tokenizer_job.tokenizer_path)
    assert tokenizer.get_vocab_size() == TINY.vocabulary
    before = file_digest(probed.tokenizer_job.tokenizer_path)
    make_tokenizer(probed.tokenizer_job.model_copy(update={"force": True}))
    assert file_digest(probed.tokenizer_job.tokenizer_path) == before


def test_a_tokenizer_can_be_given(probed: Any, tmp_path: Any) -> None:
    path = tmp_path / "tokenizer.json"
    shutil.copy(probed.tokenizer_job.tokenizer_path, path)
    job = probed.tokenizer_job.model_copy(
        update={"root": str(tmp_path / "other"), "vocabulary": None, "path": str(path), "path_digest": "d"}
    )
    make_tokenizer(job)
    assert job.tokenizer_path.read_bytes() == path.read_bytes()


def test_a_training_is_not_repeated_and_leaves_no_checkpoint(probed: Any) -> None:
    job = probed.train["best"][0]
    made = train_model(job)
    assert made.cached
    assert sorted(path.name for path in job.folder.iterdir()) == ["bits.parquet", "manifest.json"]
    assert made.details["tokens"] == 640
    assert [seen for seen, _ in made.details["losses"]][-1] == 640
    assert job.model_copy(update={"preset": TINY.model_copy(update={"micro_batch": 1})}).key == job.key
    assert job.model_copy(update={"seed": 5}).key != job.key


def test_bits_are_those_of_the_held_out_documents(probed: Any) -> None:
    job = probed.train["random"][1]
    bits, sizes = read_bits(job.manifest_path)
    assert len(bits) == len(sizes) == probed.held_out.rows
    assert (bits > 0).all()
    assert 1 < bits.sum() / sizes.sum() < 8


def arms(**tokens: int) -> dict[str, StageFile]:
    return {
        name: StageFile(stage="t", name=name, path="", rows=1, bytes=1, fingerprint="", details={"tokens": count})
        for name, count in tokens.items()
    }


@pytest.mark.parametrize(("wanted", "found"), [(None, 960), (500, 448), (3000, 2944)])
def test_all_arms_get_the_same_tokens(wanted: int | None, found: int) -> None:
    """As many as the smallest arm has, in whole steps of 64 tokens; more only if asked for."""
    assert tokens_for_all(TINY, wanted, arms(a=1000, b=2000)) == found


@pytest.mark.parametrize(("wanted", "smallest", "message"), [(4001, 1000, "more than 4 times"), (None, 63, "takes 64")])
def test_too_few_tokens_are_named(wanted: int | None, smallest: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        tokens_for_all(TINY, wanted, arms(a=smallest, b=2000))
