"""Solvers and the baselines that they are compared with, one module each."""
