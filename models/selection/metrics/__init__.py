"""Diversity metrics, one module each.

Source: DATAMASK, arXiv 2512.24265, for the three metrics. The closed-form gradients, the tangents and the
standardisation of `disf` by the whole block are ours.
"""
