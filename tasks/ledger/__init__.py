"""Tell what a workspace's stages decided on documents, compare two, and remove documents from its files."""
