"""The commands of `airflow ft`: thin shells over the core, which works from the stored plans alone.

One module a group of commands; `airflow_ft.admin.cli` names them, and imports one when its command runs.
"""
