"""Acts of a person on a pipeline: the question before an act, the act, and the lines that report its result.

The command line (`airflow_ft.admin.commands`) and the tasks of `airflow_ft.operators` are two ways to ask for the same acts.
They differ in their `Requester` alone: how one is asked and told, who signs, and who reads the connections.
"""
