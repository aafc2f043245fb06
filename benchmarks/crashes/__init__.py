"""The same kills against what Spark users have today and against this package: `make compare`."""
