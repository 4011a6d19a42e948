"""Count what every step drops by group, and warn of a group that a step wipes out, or stop the run."""

import logging
from collections.abc import Sequence

from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.models.errors import DataError
from fineweb_mask.models.losses import Wiped
from fineweb_mask.tasks.losses import LossesJob, wiped_groups
from fineweb_mask.tasks.workspace.references import ShardFiles

logger = logging.getLogger(__name__)

NAMED = 3
"""Groups that a message names."""
REMEDIES = {
    "ingest": "change what drops them",
    "duplicate": "look where their copies are, or set ingest.exact_dedup to shard or off",
    "near_duplicate": "read some pairs (view fates of fineweb-mask sql); name the group first in "
    "ingest.copies.prefer to keep its copies, or in ingest.copies.exempt, or set ingest.near_threshold higher",
    "same_url": "name the group first in ingest.copies.prefer to keep its pages, or in ingest.copies.exempt, or set "
    "ingest.url_dedup to false",
    "excluded": "name less in the lists of ingest.exclude",
    "bad_vector": "use another embedding.model",
}
"""What to do about a group that a step wipes out."""


class WipedGroupError(DataError):
    """A step keeps nearly nothing of a group."""


def watch_groups(run: Run, shards: Sequence[ShardFiles]) -> None:
    """Count what is dropped of each group, as far as the shards have come, and warn of those that are wiped out now.

    Raises
    ------
    WipedGroupError
        If there are some, and `ingest.on_wiped_group` is `stop`.
    SettingsError
        If a column of `report.by` has too many values.
    """
    told = wiped_groups(run.losses)
    run.losses = run.one(LossesJob(root=run.root, shards=list(shards), by=run.settings.report.by))
    wiped = [one for one in wiped_groups(run.losses) if one not in told]
    if not wiped or not run.remembers:  # or it is only looked at
        return
    count = run.losses.details["wiped_groups"] - len(told)
    if run.ui is not None:
        run.ui.on_wiped(wiped)
    if run.settings.ingest.on_wiped_group == "stop":
        raise WipedGroupError(
            f"{_named(wiped, count)}: {REMEDIES[wiped[0].step]}; or set ingest.on_wiped_group to warn"
        )
    logger.warning("nearly nothing is left: %s", _named(wiped, count))


def _named(wiped: Sequence[Wiped], count: int) -> str:
    return "; ".join(map(str, wiped[:NAMED])) + (f"; and {count - NAMED:,} more" if count > NAMED else "")
