"""The HTML pages: sections, charts, samples."""
