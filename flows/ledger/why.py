"""Answer what became of documents as a flow, for deployments; the command and Python need no Prefect for it."""

from prefect.artifacts import create_markdown_artifact

from fineweb_mask.flows.display.prefect_ui import artifact_key, or_warn
from fineweb_mask.flows.ledger.answers import WhySummary, explained
from fineweb_mask.flows.pipeline.start import as_flow


@as_flow("why", "why {workspace}")
def why(workspace: str, documents: list[str]) -> WhySummary:
    """Tell every stage's decision on documents, with the numbers.

    Parameters
    ----------
    workspace
        Workspace of a run: a folder or URL.
    documents
        URLs or ids of documents.

    Raises
    ------
    StatusError
        If the folder is no workspace, or its source or models are out of reach.
    SettingsError
        If nothing is ingested yet.
    """
    found = explained(workspace, documents)
    lines = str(found).replace("`", "'")
    note = "What every stage decided on documents."
    or_warn(create_markdown_artifact, f"```\n{lines}\n```\n", key=artifact_key("why", workspace), description=note)
    return found
