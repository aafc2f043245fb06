"""How a JVM with Spark is had: started with its jars, or lent by a run before."""
