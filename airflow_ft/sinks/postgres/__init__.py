"""PostgreSQL as a sink: marker and rows in one transaction, or prepared before the decision."""
