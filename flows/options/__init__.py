"""Parse what commands take as text: the arms of a probe, weights of quality."""
