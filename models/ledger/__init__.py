"""Compute what the ledger says of one document among others; it reads no files."""
