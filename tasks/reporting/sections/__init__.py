"""Build the sections of the report: figures and tables from counts, breakdowns and measures, one subject a module."""
