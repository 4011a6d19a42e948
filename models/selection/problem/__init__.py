"""Define what is maximised, within which budget, on which scale, and bound what any selection can reach."""
