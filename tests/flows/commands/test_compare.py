"""`fineweb-mask compare`, `sweep`: wrong selectors, label columns and values of lamb."""

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


@pytest.mark.parametrize(("lamb", "message"), [("0,2", "from 0 to 1, received 2"), ("0:1", "from:to:step")])
def test_wrong_values_end_with_2_before_any_work(invoke, recipe, tmp_path, lamb, message):
    done = invoke("sweep", recipe, "--lamb", lamb, "--json")
    assert done.exit_code == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [recipe]
