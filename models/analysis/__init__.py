"""What a set of documents is like: how far its vectors spread, what its words are about, how it falls into groups."""
