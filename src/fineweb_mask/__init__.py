"""Select a smaller, better pre-training set from raw web text."""
