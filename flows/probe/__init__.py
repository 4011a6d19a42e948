"""Train models on selections and datasets, compare what they learn, and learn from it how to weigh scores."""
