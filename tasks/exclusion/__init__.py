"""List texts outside of the corpus, so that ingest drops the documents that hold them."""
