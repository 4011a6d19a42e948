"""Write a dataset as files that trainers read."""
