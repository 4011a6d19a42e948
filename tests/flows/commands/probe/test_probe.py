"""`fineweb-mask probe`: what is wrong is named before any work."""

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--arms", "mean_field,nosuch"], "nosuch"),
        (["--arms", "random"], "at least two arms"),
        (["--arms", "random,mean_field[lambda=1]"], "did you mean 'lamb'"),
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


@pytest.mark.parametrize(("content", "message"), [("{}", "cannot be read"), (None, "has no token <|endoftext|>")])
def test_a_tokenizer_that_cannot_be_used_is_told_before_any_work(invoke, recipe, tmp_path_factory, content, message):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(content or Tokenizer(WordLevel({"cat": 0}, unk_token="cat")).to_str())
    done = invoke("probe", recipe, "--tokenizer", str(path))
    assert done.exit_code == 2
    assert message in done.stderr
    assert list(recipe.parent.iterdir()) == [recipe]
