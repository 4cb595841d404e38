"""Traces: spans projected from the ledger (tenure/domain/traces.py), exported to an OpenTelemetry collector.

settings.py     which collector, and whether content is exported
export_lease.py  which replica exports, and up to where: the cursor in the change feed and in each ledger
otlp.py         spans as OpenTelemetry has them, and the request to the collector
grpc_exporter.py  the exporter of OpenTelemetry
http_exporter.py  the exporter over HTTP
exporting.py    the duty: reads, projects, exports, and only then moves the cursor
"""
