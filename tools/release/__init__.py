"""What a release needs, and whether it is there: see docs/releasing.md."""
