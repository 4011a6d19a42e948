"""Measure what selections of a workspace teach a language model of n-grams."""
