"""Train small language models on selections, and compare what they learn."""
