"""Compute what the ledger says of documents; it reads no files."""
