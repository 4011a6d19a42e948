"""Define the ledger's commands: what became of a document, and what changed."""
