"""Write a dataset: its rows, files and card; verify and publish it."""
