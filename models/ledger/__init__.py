"""Answer for single documents: why one is where it is, what two selections differ in, what was removed on request."""
