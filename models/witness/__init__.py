"""Measure what a selection teaches a language model, in seconds: a model of n-grams, controls, and statistics."""
