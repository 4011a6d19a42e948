"""Select documents jointly for quality and diversity: numbers only, no files."""
