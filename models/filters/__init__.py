"""Filter texts by the heuristics of others."""
