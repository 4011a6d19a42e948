"""Offer the flows and finished workspaces to Python: `fineweb_mask.curate`, `fineweb_mask.open` and others."""
