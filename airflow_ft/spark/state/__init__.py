"""Contents of Spark's checkpoint locations: read, change and move positions, state and schemas."""
