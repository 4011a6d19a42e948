"""`fineweb-mask report`: workspaces without a run."""


def test_a_folder_without_a_run_ends_with_2(invoke, tmp_path):
    done = invoke("report", tmp_path, "--json")
    assert done.exit_code == 2
    assert "is no workspace: no run was started there" in done.stderr
    assert list(tmp_path.iterdir()) == []
