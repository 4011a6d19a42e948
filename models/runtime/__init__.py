"""Report the progress of long loops, and stop them on request."""
