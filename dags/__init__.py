"""Example DAGs, installed as `airflow_ft.example_dags`."""
