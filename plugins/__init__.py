"""Pages and APIs for the Airflow UI, installed as `airflow_ft.plugins`."""
