"""Settings that are gone are refused with one line on what to write instead."""

import pytest

from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.validation import validated

MINIMAL = {"workspace": "w", "source": {"path": "corpus"}, "quality": {"scorers": [{"model": "model.bin"}]}}


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            {"selection": {"block_budget": "price"}},
            "selection.block_budget: is gone: leave it out, every block gives select_ratio",
        ),
        (
            {"selection": {"given": {"path": "older"}}},
            "selection.given: is gone: leave it out, and select from the new documents and the old ones together",
        ),
        (
            {"selection": {"weigh_by": "documents"}},
            "selection.weigh_by: is gone: leave it out, quality and diversity are means over what budget_by counts",
        ),
        (
            {"selection": {"groups": {"column": "dump", "max_repeats": 2}}},
            "selection.groups.max_repeats: is gone: leave it out, and repeat a group's documents in training",
        ),
        (
            {"selection": {"quadmix": {"max_repeats": 2}}},
            "selection.quadmix.max_repeats: is gone: leave it out, and repeat documents in training",
        ),
        ({"selection": {"metrics": "cluster_coverage"}}, "selection.metrics: is gone: write facility"),
        (
            {"selection": {"metrics": {"cluster_coverage": 1, "disf": 1}}},
            "selection.metrics.cluster_coverage: is gone: write facility",
        ),
        (
            {"selection": {"quad": {"scorer": {"kind": "edu"}}}},
            "selection.quad: is gone: leave it out, it reads quality: the model belongs to quality.scorers",
        ),
        (
            {"selection": {"dsir": {"by_task": True}}},
            "selection.dsir: is gone: leave it out, all examples of selection.targets are one target",
        ),
        (
            {"selection": {"semdedup": {"eps": 0.1}}},
            "selection.semdedup: is gone: leave it out, and set near_duplicates.forbid and near_duplicates.threshold",
        ),
    ],
)
def test_a_setting_that_is_gone_says_what_to_write_instead(content, line):
    with pytest.raises(SettingsError) as error:
        validated(PipelineSettings, MINIMAL | content)
    assert line in str(error.value).splitlines()
