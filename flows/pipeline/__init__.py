"""Run a pipeline stage by stage: find what is current, build the rest by Prefect, write down what was done."""
