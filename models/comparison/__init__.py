"""Compare selections: where more of one good begins to cost much of another."""
