"""Train fastText classifiers and score texts with them."""
