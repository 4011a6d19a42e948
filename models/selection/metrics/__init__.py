"""Diversity metrics: `facility` by lists of neighbours, `pairwise` and `disf` by a moment.

Source: DATAMASK, arXiv 2512.24265, for the three metrics. The closed-form gradients, the tangents and the
standardisation of `disf` by the whole block are ours.
"""
