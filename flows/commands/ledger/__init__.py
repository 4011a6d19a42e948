"""Ask for single documents of a workspace, or remove them."""
