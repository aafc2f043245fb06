"""The part that runs in the task's process, without pyspark: it starts a driver, watches it, and restarts it."""
