"""Broken, hostile and odd files: each is read with all its rows accounted for, or is set aside with a reason."""

import pyarrow.parquet as pq
import pytest

from fineweb_mask.models.settings import IngestSettings, SourceSettings
from fineweb_mask.tasks.ingest import ingest
from fineweb_mask.tasks.source import opening
from fineweb_mask.tasks.source.columns import settle
from fineweb_mask.tasks.workspace.job import BadShardError
from fineweb_mask.tasks.workspace.workspace import Workspace
from tests.tasks.jobs import ingest_job
from tests.tasks.source.broken_files import BROKEN, EITHER, MOST_BYTES, READ, REFUSED
from tests.tasks.source_files import discover

SETTINGS = IngestSettings(min_chars=20)


def test_there_are_many() -> None:
    assert len({one.name for one in BROKEN}) == len(BROKEN) >= 300


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: ascii(broken.name)[1:60])
def test_a_file_is_read_or_set_aside(tmp_path, broken, monkeypatch):
    monkeypatch.setattr(opening, "LARGEST_DOCUMENT", MOST_BYTES)
    (tmp_path / "source").mkdir()
    broken.write(tmp_path / "source" / broken.name)
    source = SourceSettings(path=str(tmp_path / "source"))
    [shard] = settle(discover(source), source)
    workspace = Workspace(tmp_path / "workspace")
    try:
        found = ingest(ingest_job(workspace, shard, source, SETTINGS))
    except BadShardError as error:  # any other error would end a run
        found = error
    if isinstance(found, BadShardError):
        assert broken.outcome in {REFUSED, EITHER}, found
        assert str(found).startswith(shard.relative)
        assert broken.why in str(found)
        assert not [path for path in workspace.root.rglob("*") if path.is_file()]
        return
    assert broken.outcome in {READ, EITHER}
    dropped = found.details["dropped"]
    assert found.details["rows_in"] == found.rows + sum(dropped.values())
    assert 0 <= found.details["tokens"] <= found.details["tokens_in"] < 2**63
    if broken.outcome == READ:
        assert (found.details["rows_in"], dropped) == (broken.rows, broken.dropped)
    pq.read_table(workspace.resolve(found)).validate(full=True)
