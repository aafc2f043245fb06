"""A pipeline and its steps in a process with Airflow's configuration: specification, run, doctor, actions."""
