"""HBase as a sink: rows by key over the Thrift gateway, with cell timestamps that the sink gives out."""
