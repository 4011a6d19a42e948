"""Name what one run does in addition to its recipe: what it fits again, and its share of the shards."""

from typing import Literal, NamedTuple, Self

from fineweb_mask.tasks.fit.models import FitClassifierJob, FitEncoderJob, FitStatisticsJob, FitTargetsJob
from fineweb_mask.tasks.selection.corpus.learning import KeepPolicyJob
from fineweb_mask.tasks.workspace.job import Stage

Refit = Literal["encoder", "quality", "selection"]
"""What can be fitted again on the corpus as it is now."""

REFITTED: dict[Refit, list[Stage]] = {
    "encoder": [FitEncoderJob.stage],
    "quality": [FitClassifierJob.stage, FitStatisticsJob.stage],
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
