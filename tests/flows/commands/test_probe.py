"""`fineweb-mask probe`: what is wrong is named before any work."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", "datamask,nosuch"], "nosuch"),
        (["--arms", "random"], "at least two arms"),
        (["--arms", "random,datamask[lambda=1]"], "did you mean 'lamb'"),
        (["--arms", "random,nosuch.parquet"], "nosuch.parquet"),
        (["--preset", "7b"], "preset"),
        (["--heldout", "books"], "NAME=FILE"),
        (["--heldout", "books=nosuch.parquet"], "nosuch.parquet"),
        (["--benchmarks", "nosuch.jsonl"], "nosuch.jsonl"),
        (["--by", "nosuch"], "nosuch"),
        (["--tokenizer", "nosuch.json"], "nosuch.json"),
    ],
)
def test_wrong_names_end_with_2_before_any_work(invoke, recipe, tmp_path, arguments, message):
    done = invoke("probe", recipe, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [recipe]
