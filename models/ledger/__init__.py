"""Tell where one document stands among others, and recognise those that were removed on request."""
