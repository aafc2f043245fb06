"""Tests of airflow-ft; their folders mirror the package."""
