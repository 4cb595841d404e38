"""Logs, metrics and telemetry.

logs.py              log formats, and the fields of the log context
request_log.py       one log line for each request
metrics.py           counters, gauges and histograms, and the labels of models
metric_catalogue.py  every metric: its labels and what it means
prometheus.py        serves the metrics to Prometheus
telemetry.py         the export of metrics to an OpenTelemetry collector
otlp_target.py       where OTLP over HTTP goes, from the environment
otlp_http.py         the export over it
"""
