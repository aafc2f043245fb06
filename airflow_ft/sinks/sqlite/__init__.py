"""SQLite as a sink: a file of this machine, and no server. Marker and rows enter in one transaction."""
