"""What is looked at without running anything; the state of stages is looked at in tests/integration/test_stages.py."""

import pytest

from fineweb_mask.flows.status.inspection import StatusError, open_workspace


def test_a_folder_without_a_run_is_no_workspace(tmp_path):
    with pytest.raises(StatusError, match="is no workspace: no run was started there"):
        open_workspace(tmp_path)
