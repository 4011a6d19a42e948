"""A damaged file of the workspace is deleted, so that the next run builds it again."""

import pytest

from fineweb_mask.flows.pipeline.start import DiscardedError, _damaged_discarded
from fineweb_mask.tasks.storage.parquet import DamagedFileError
from fineweb_mask.tasks.workspace.workspace import Workspace


@pytest.mark.parametrize(("name", "error"), [("workspace/a", DiscardedError), ("labels", DamagedFileError)])
def test_a_damaged_file_is_deleted_and_one_of_the_users_stays(tmp_path, name, error):
    (tmp_path / "workspace").mkdir()
    (tmp_path / name).write_text("damaged")
    said = r"is damaged: of a flipped bit; it is deleted: run again to build it again$|flipped bit$"
    with pytest.raises(error, match=said), _damaged_discarded(Workspace(tmp_path / "workspace")):
        raise DamagedFileError(str(tmp_path / name), "of a flipped bit")
    assert (tmp_path / name).exists() == (name == "labels")
