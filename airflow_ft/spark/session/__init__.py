"""How a JVM with Spark is had: started with its jars and its archive of classes, or lent by a run before."""
