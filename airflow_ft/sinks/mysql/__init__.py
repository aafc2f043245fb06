"""MySQL and MariaDB as a sink. `spec` is what a DAG author writes; `participant` does the work.

Every row of a checkpoint enters its tables in the same local transaction as the marker that proves it.
"""
