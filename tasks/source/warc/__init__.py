"""Read web crawls: WARC files, and the texts of the pages in them."""
