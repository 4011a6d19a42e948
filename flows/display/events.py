"""Emit Prefect events that automations can act on."""

QUARANTINED = "fineweb-mask.shard.quarantined"


def quarantined(shard: str, reason: str) -> None:
    """Emit an event for a quarantined shard; Prefect adds the flow run to it."""
    from prefect.events import emit_event

    resource = {"prefect.resource.id": f"fineweb-mask.shard.{shard}", "prefect.resource.name": shard}
    emit_event(QUARANTINED, resource, payload={"reason": reason})
