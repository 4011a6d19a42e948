"""What the pipeline tells Prefect's events, for automations to act on."""

from prefect.events import emit_event

QUARANTINED = "fineweb-mask.shard.quarantined"


def quarantined(shard: str, reason: str) -> None:
    """Tell that a shard was set aside; Prefect adds the run that it belongs to."""
    resource = {"prefect.resource.id": f"fineweb-mask.shard.{shard}", "prefect.resource.name": shard}
    emit_event(QUARANTINED, resource, payload={"reason": reason})
