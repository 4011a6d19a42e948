"""`probe` as a flow on the sample corpus: what is trained once is not trained again."""

import json
from pathlib import Path

import pytest

from fineweb_mask.flows.probe.arms import parse_arms
from fineweb_mask.flows.probe.probe import probe
from fineweb_mask.models.probe.settings import ProbeSettings
from fineweb_mask.tasks.workspace.records.runs import LastRun
from fineweb_mask.tasks.workspace.workspace import Workspace


def built(summary):
    return {stage.stage: stage.files - stage.cached for stage in summary.stages if stage.files > stage.cached}


@pytest.mark.long
def test_arms_are_compared_on_what_none_of_them_saw(workspace, service):
    settings = LastRun.load(Workspace(workspace)).settings.model_copy(update={"workspace": str(workspace)})
    arms = f"random,other=mean_field[lamb=0.3,metrics=pairwise],theirs={workspace / 'dataset'}"
    models = ProbeSettings(arms=parse_arms(arms), seeds=2, by="dump", tokens=2048, held_out_share=0.03)
    found = probe(settings, models)
    assert built(found) == {  # with the documents and the two models of the common start
        "hold_out": 1, "tokenizer": 1, "contend": 3, "tokenize": 4, "train": 8, "probe": 1,
    }  # fmt: skip
    assert found.arms.keys() == found.bits_per_byte["pool"].keys() == {"random", "other", "theirs"}
    assert all(0.5 < figures["mean"] < 8 for figures in found.bits_per_byte["pool"].values())
    assert len(found.comparisons["pool"]) == 3
    assert found.arms["theirs"]["shared_words"] > 0  # the dataset was selected before anything was held out
    assert found.arms["other"]["near_duplicates"] is not None
    assert built(probe(settings, models)) == {}
    scratch = probe(settings, models.model_copy(update={"from_scratch": True}))
    assert built(scratch) == {"train": 6, "probe": 1}
    assert scratch.bits_per_byte["pool"]["random"] != found.bits_per_byte["pool"]["random"]
    more = models.model_copy(update={"arms": [*models.arms[:2], *parse_arms("greedy,top_quality")]})
    assert built(probe(settings, more)) == {"contend": 2, "tokenize": 2, "train": 4, "probe": 1}
    assert Path(found.page).is_file()
    flow_run = service.read("flow_runs/filter", sort="START_TIME_DESC", limit=1)[0]
    shown = service.artifacts(flow_run["id"])
    assert {"probe", "probe-table"} <= shown.keys()
    assert len(json.loads(shown["probe-table"]["data"])) == 4
