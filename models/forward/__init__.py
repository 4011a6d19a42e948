"""Prepare and run forward passes: token ids, batches, devices, unit vectors."""
