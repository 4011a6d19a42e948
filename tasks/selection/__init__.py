"""Select from blocks of documents, and compare selections."""
