"""Build the HTML pages: sections, charts, samples."""
