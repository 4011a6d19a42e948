"""Record what happened in a workspace: runs, counts of documents, the code that built a product."""
