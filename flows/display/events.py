"""Tell of quarantined shards: in the log of the run, and by Prefect events that automations can act on."""

QUARANTINED = "fineweb-mask.shard.quarantined"


def quarantined(shard: str, reason: str) -> None:
    """Log a quarantined shard, and emit an event for it; Prefect adds the flow run to it."""
    from prefect.events import emit_event
    from prefect.logging import get_run_logger

    get_run_logger().warning("%s is set aside: %s", shard, reason)

    resource = {"prefect.resource.id": f"fineweb-mask.shard.{shard}", "prefect.resource.name": shard}
    emit_event(QUARANTINED, resource, payload={"reason": reason})
