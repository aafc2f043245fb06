"""The part that runs in Spark's driver: the user's job as a query whose micro-batches become checkpoints."""
