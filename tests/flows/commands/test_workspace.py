"""`fineweb-mask status` and `gc`: URLs without a run, and folders that look like a workspace."""

import pytest


@pytest.mark.parametrize("command", ["status", "gc"])
def test_a_url_without_a_run_or_with_credentials_is_refused(invoke, bucket, command):
    done = invoke(command, f"{bucket.url}/nothing")
    assert done.exit_code == 2
    assert f"{bucket.url}/nothing is no workspace: no run was started there" in done.stderr
    done = invoke(command, "s3://user:hunter2@bucket/x")
    assert done.exit_code == 2
    assert "put credentials in the environment" in done.stderr
    assert "hunter2" not in done.stderr


def test_a_run_json_of_something_else_makes_no_workspace(invoke, tmp_path):
    (tmp_path / "run.json").write_text('{"script": "start"}')
    done = invoke("gc", str(tmp_path))
    assert done.exit_code == 2
    assert "'run.json'" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
