"""`fineweb-mask status`: workspaces that do not exist, and URLs."""


def test_a_url_without_a_run_or_with_credentials_is_refused(invoke, bucket):
    done = invoke("status", f"{bucket.url}/nothing")
    assert done.exit_code == 2
    assert f"{bucket.url}/nothing is no workspace in which a run was begun" in done.stderr
    done = invoke("status", "s3://user:hunter2@bucket/x")
    assert done.exit_code == 2
    assert "put credentials in the environment" in done.stderr
    assert "hunter2" not in done.stderr
