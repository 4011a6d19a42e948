"""Plant documents whose fate is known, and judge by them and by exact similarities what a step dropped."""
