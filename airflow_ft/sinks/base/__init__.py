"""What sinks of different systems share."""
