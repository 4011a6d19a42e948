"""Say what one run does besides its recipe: what it fits again, its share of the shards, the models it was given."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple, Self, TypeGuard

from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.models.settings.quality import FastTextScorerSettings, ScorerSettings, SidecarScorerSettings
from fineweb_mask.tasks import embed
from fineweb_mask.tasks.fit.models import FitClassifierJob, FitEncoderJob, FitStatisticsJob
from fineweb_mask.tasks.fit.targets import FitTargetsJob
from fineweb_mask.tasks.inference.scorers import QualityModel, resolve_model
from fineweb_mask.tasks.selection.corpus.learning import KeepPolicyJob
from fineweb_mask.tasks.source.sidecars import Sidecars
from fineweb_mask.tasks.workspace.job import Stage

Refit = Literal["encoder", "quality", "blocks", "selection"]
"""What can be fitted again on the corpus as it is now."""

REFITTED: dict[Refit, list[Stage]] = {
    "encoder": [FitEncoderJob.stage],
    "quality": [FitClassifierJob.stage, FitStatisticsJob.stage],
    "blocks": [],  # the record of the groups is deleted
    "selection": [KeepPolicyJob.stage, FitTargetsJob.stage],
}


class Share(NamedTuple):
    """One of several equal shares of the shards, for machines that fill one workspace together."""

    number: int  # from 1
    of: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a share such as `2/8`.

        Raises
        ------
        ValueError
            If it is none.

        Examples
        --------
        >>> Share.parse("2/8")
        Share(number=2, of=8)
        """
        number, slash, of = text.partition("/")
        if slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of):
            return cls(int(number), int(of))
        raise ValueError(f"a share is I/N, such as 2/8 for the second of eight, received {text!r}")


class PretrainedModels(NamedTuple):
    """The models that the settings name, fetched before the first stage, so that a wrong name fails at once."""

    scorers: dict[str, QualityModel]  # by the scorer's name
    encoder: embed.EmbeddingModel | None  # None if it is built in or one of the scorers
    sidecars: Mapping[str, Sidecars] = MappingProxyType({})  # annotations of the source files, by the scorer's name
    selecting: QualityModel | None = None  # scores the documents that the solver `quad` looks at

    @classmethod
    def of(cls, settings: PipelineSettings) -> Self:
        """Find the models on this machine or fetch them from the hub."""
        named = [scorer for scorer in settings.quality.scorers if not is_trained(scorer)]
        selecting = settings.selection.quad.scorer
        by_content = settings.source.fingerprint == "content"
        built_in = settings.embedding.model in embed.BUILT_IN
        return cls(
            scorers={scorer.name: resolve_model(scorer) for scorer in named},
            encoder=None if built_in else embed.resolve_model(settings.embedding),
            sidecars={
                scorer.name: Sidecars.of(scorer, by_content=by_content)
                for scorer in named
                if isinstance(scorer, SidecarScorerSettings)
            },
            selecting=None if selecting is None else resolve_model(selecting),
        )


def is_trained(scorer: ScorerSettings) -> TypeGuard[FastTextScorerSettings]:
    """Return whether a scorer's model is trained on labels by the pipeline."""
    return isinstance(scorer, FastTextScorerSettings) and scorer.model is None
