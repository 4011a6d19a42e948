"""Numbers of the ledger."""
