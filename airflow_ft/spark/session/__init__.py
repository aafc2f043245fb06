"""Get a JVM with Spark: start it with its jars, or borrow it from an earlier run."""
