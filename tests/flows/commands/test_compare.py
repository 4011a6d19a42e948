"""`fineweb-mask compare`, `sweep`: wrong selectors, label columns and values of lamb."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--selectors", "mean_field,nosuch"], "selectors may be all, mean_field, policy_gradient"),
        (["compare", "--selectors", ","], "name at least one selector"),
        (["compare", "--label-column", "nosuch"], "label column 'nosuch' must be among the documents' columns"),
        (["sweep", "--lamb", "0,2"], "from 0 to 1, received 2"),
    ],
)
def test_wrong_values_end_with_2_before_any_work(invoke, recipe, tmp_path, arguments, message):
    command, *options = arguments
    done = invoke(command, recipe, *options)
    assert done.exit_code == 2
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == [recipe]
