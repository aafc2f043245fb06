"""Actions of a person on a pipeline: the question before an action, the action, and lines that report its result.

Commands (`airflow_ft.admin.commands`), the page and the maintenance DAG share them. They differ in their `Actor`:
how it asks and reports, who signs, and who reads the connections.
"""
