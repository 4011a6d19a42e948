"""The recipe of the last run: also one that an earlier version wrote, with settings that are gone."""

import json
from pathlib import Path

from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace

RECIPE = {"workspace": "w", "source": {"path": "p"}, "quality": {"scorers": [{"name": "a", "model": "m.bin"}]}}


def test_the_recipe_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    expected = LastRun(settings=PipelineSettings.model_validate(RECIPE), folder="f")
    content = json.loads(expected.model_dump_json())
    content["settings"]["quality"]["scorers"][0] |= {"max_chars": None, "standardise": True, "training": {"epochs": 12}}
    content["settings"]["selection"] |= {"blocks": "by_shard", "gist": {"distances": 8}, "directions": 128}
    content["settings"]["embedding"] |= {"chunk_documents": 8192}
    LastRun.path(Workspace(tmp_path)).write_text(json.dumps(content))
    assert LastRun.load(Workspace(tmp_path)) == expected
