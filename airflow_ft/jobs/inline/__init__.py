"""`airflow_ft.job`: a pipeline's function in the DAG file, taken out of it as source. Nothing of it is run here."""
