"""Quality scorers: text in, one float32 per document out; a new scorer is one class and one entry in `SCORERS`."""
