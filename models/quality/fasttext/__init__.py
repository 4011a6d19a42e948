"""The fastText scorer: its model file, its lines of text, training and scoring."""
