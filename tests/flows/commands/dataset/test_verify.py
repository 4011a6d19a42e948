"""`fineweb-mask verify` and `push`: folders without a dataset."""

import json

import pytest


@pytest.mark.parametrize("command", ["verify", "push"])
@pytest.mark.parametrize(
    ("place", "message"),
    [("nowhere", "nowhere must be a folder"), ("", "is neither a dataset nor a workspace with one")],
)
def test_a_folder_without_a_dataset_ends_with_2(invoke, tmp_path, command, place, message):
    done = invoke(command, tmp_path / place, *(["me/data"] if command == "push" else []), "--json")
    assert done.exit_code == 2
    assert message in done.stderr
    assert message in json.loads(done.stdout)["error"]
