"""What the table of a sink is called in lineage."""

from airflow_ft.sinks.base.table_sink import folder_dataset, folder_place

dataset, place = folder_dataset, folder_place
