"""Errors of a full disk say what was done, how much was free, and what to do."""

import errno
import re
from pathlib import Path

import duckdb
import pytest
from safetensors import SafetensorError

from fineweb_mask.models.errors import WorkspaceError
from fineweb_mask.tasks.storage.disk_errors import disk_errors_explained


def test_errors_of_a_full_disk_and_a_used_up_quota_say_what_was_done_and_what_to_do(tmp_path: Path) -> None:
    def explained(error: Exception) -> str:
        with pytest.raises(WorkspaceError) as found, disk_errors_explained(tmp_path, "embed a"):
            raise error
        return str(found.value)

    path = str(tmp_path / "x.parquet")
    full = explained(OSError(errno.ENOSPC, "No space left on device", path))
    assert re.match(rf"embed a: {re.escape(path)}: No space left on device \(more than the [\d,]+ bytes", full)
    quota = explained(OSError(errno.EDQUOT, "Disk quota exceeded", path))
    assert quota.startswith(f"embed a: {path}: Disk quota exceeded: free some space there")
    of_duckdb = explained(duckdb.IOException(f'IO Error: Could not write file "{path}": No space left on device'))
    assert of_duckdb.startswith(f"embed a: {tmp_path}: No space left on device (more than")
    of_safetensors = explained(SafetensorError("I/O error: No space left on device (os error 28)"))
    assert of_safetensors.startswith(f"embed a: {tmp_path}: No space left on device (more than")
    with pytest.raises(OSError, match="Input/output"), disk_errors_explained(tmp_path):
        raise OSError(errno.EIO, "Input/output error")
