"""Tasks: each a thin shell over one step of `airflow_ft.protocol.steps`, or (`pipeline`) a group of them."""
