"""Run the ledger's commands as flows."""
