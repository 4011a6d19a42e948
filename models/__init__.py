"""Compute scores, vectors and selections from texts and arrays.

Nothing here knows the workspace, Prefect or the command, and nothing prints. Model files and temporary files are read
and written where a model needs them.
"""
