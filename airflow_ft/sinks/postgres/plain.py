"""Return whether a table could refuse rows that its types and NOT NULL take. Then a trial of an upsert applies them."""

from __future__ import annotations

from collections.abc import Collection

from airflow_ft.sinks.postgres.catalog import Table
from airflow_ft.sinks.postgres.session import Session
from airflow_ft.sinks.postgres.spec import PostgresSink

# A plain heap table with a primary key alone: no constraint, trigger, rule, policy, publication, child or parent, and
# no index that computes anything or takes values of any length (an index row may be too large).
_PLAIN = """
SELECT current_setting('server_encoding') = 'UTF8'
   AND c.relkind = 'r' AND c.relreplident = 'd' AND NOT c.relrowsecurity AND c.relam = (
           SELECT oid FROM pg_am WHERE amname = 'heap')
   AND NOT EXISTS (SELECT FROM pg_constraint WHERE c.oid IN (conrelid, confrelid) AND contype NOT IN ('p', 'n'))
   AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid)
   AND NOT EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = c.oid)
   AND NOT EXISTS (SELECT FROM pg_rewrite WHERE ev_class = c.oid)
   AND NOT EXISTS (SELECT FROM pg_inherits WHERE c.oid IN (inhrelid, inhparent))
   AND NOT EXISTS (
       SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (
           (i.indisunique AND NOT i.indisprimary) OR i.indisexclusion OR i.indexprs IS NOT NULL OR i.indpred IS NOT NULL
           OR EXISTS (SELECT FROM pg_attribute k WHERE k.attrelid = c.oid AND k.attnum = ANY (i.indkey)
                      AND k.attlen < 0)))
   AND NOT EXISTS (
       SELECT FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
       WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND (
           t.typtype = 'd' OR a.attstorage <> t.typstorage
           OR (a.attname <> ALL (%s) AND (a.atthasdef OR a.attidentity <> ''))))
FROM pg_class c WHERE c.oid = to_regclass(%s)
"""


def may_refuse(session: Session, table: Table, columns: Collection[str], sink: PostgresSink) -> bool:
    """Return whether it could. The table is locked; `columns` are those that rows fill."""
    filled = [*columns, sink.version_column or ""]
    return not session.value(_PLAIN, (filled, table.name.sql))
