"""The command line `airflow ft`."""
