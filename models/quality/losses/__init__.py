"""Learn from the losses of models on documents: PreSelect and Meta-rater."""
