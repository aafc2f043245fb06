"""What was measured, as scripts: each starts its own servers and prints what it found. `make bench` is the harness."""
