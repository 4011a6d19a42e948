"""Read and write object stores and other servers: buckets, ranges of files, retries, local copies."""
