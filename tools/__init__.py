"""Tools for developing airflow-ft; not part of the installed package."""
