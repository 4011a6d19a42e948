"""`fineweb-mask compare`: wrong selectors and label columns."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--selectors", "mean_field,nosuch"], "nosuch"), (["--label-column", "nosuch"], "nosuch")],
)
def test_wrong_names_end_with_2_before_any_work(invoke, recipe, tmp_path, arguments, message):
    done = invoke("compare", recipe, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [recipe]
