"""What is checked before a run."""

import pytest

from fineweb_mask.flows import compare, probe, stages, sweep
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.probe import ProbeSettings


@pytest.mark.parametrize("needs", ["sweep", "compare", "probe", "embed"])
def test_what_reads_all_vectors_again_says_that_none_are_kept(tmp_path, needs):
    settings = PipelineSettings.model_validate(
        {
            "workspace": str(tmp_path / "workspace"),
            "source": {"path": "corpus"},
            "quality": {"scorers": [{"kind": "column", "column": "token_count"}]},
            "embedding": {"keep": False},
            "selection": {"scope": "global", "metrics": "pairwise"},
        }
    )
    run = {
        "sweep": lambda: sweep.sweep.fn(settings),
        "compare": lambda: compare.check(settings, None),
        "probe": lambda: probe.check(settings, ProbeSettings()),
        "embed": lambda: stages.FLOWS["embed"].fn(settings),
    }[needs]
    with pytest.raises(SettingsError, match=rf"embedding\.keep: {needs} .*add --set embedding\.keep=true"):
        run()
    assert not (tmp_path / "workspace").exists()
