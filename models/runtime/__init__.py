"""Progress reports and stop requests of long loops."""
