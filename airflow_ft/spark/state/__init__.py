"""What lies in Spark's checkpoint locations: positions, state and schemas; how they are read, changed and moved."""
