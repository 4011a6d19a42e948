"""Create the automations of `automations.yaml` on a server: they call a webhook when something needs attention."""

from pathlib import Path
from typing import Annotated

import typer
import yaml
from prefect.automations import Automation
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import get_client
from pydantic import HttpUrl, SecretStr, TypeAdapter, ValidationError

AUTOMATIONS = Path(__file__).with_name("automations.yaml")
BLOCK = "fineweb-mask-notify"


def notify(url: str) -> list[str]:
    """Create the automations with a webhook at `url`, replacing those of the same names, and return their names."""
    webhook = Webhook(url=SecretStr(url)).save(BLOCK, overwrite=True)
    names = []
    for content in yaml.safe_load(AUTOMATIONS.read_text(encoding="utf-8"))["automations"]:
        for action in content["actions"]:
            action["block_document_id"] = webhook
        automation = Automation.model_validate(content)
        with get_client(sync_client=True) as client:
            for earlier in client.read_automations_by_name(automation.name):
                client.delete_automation(earlier.id)
        automation.create()
        names.append(automation.name)
    return names


def main(url: Annotated[str, typer.Argument(help="Address that receives a POST of JSON with a `text`.")]) -> None:
    """Call a webhook when a run fails or a shard is quarantined on the server that PREFECT_API_URL names."""
    try:
        TypeAdapter(HttpUrl).validate_python(url)
    except ValidationError as error:
        raise typer.BadParameter("not an http or https address") from error
    typer.echo(f"created: {', '.join(notify(url))}")


if __name__ == "__main__":
    typer.run(main)
