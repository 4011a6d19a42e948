"""Implement the subcommands of `fineweb-mask`, one module each."""
