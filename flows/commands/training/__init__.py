"""Train models: `probe`, `score-weights` and `train-quality`."""
