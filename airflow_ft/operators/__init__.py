"""Tasks: each a thin shell over one step of `airflow_ft.core.steps`, or (`pipeline`) a group of them."""
