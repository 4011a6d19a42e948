"""Look at what a workspace holds of every stage, without Prefect, and remove what no recipe reads."""
