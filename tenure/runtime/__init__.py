"""The common parts of all processes: start and stop, gRPC, Postgres, outbound HTTP, signatures, fault tests.

Process:
settings.py              one frozen dataclass of settings per process, read from the environment
service.py               starts a service: settings, logs, failpoints, telemetry, then its own composition
process.py               signals, orderly close and exit codes; the duties (background coroutines that are restarted)
fast_start.py            imports without garbage collection, for a fast start
running_stack.py         finds the development stack that runs on a data directory
health_check.py          asks a service of this machine for its health
listening.py             the error of a process that cannot listen on its address
logs.py                  log formats, and the fields of the log context
request_log.py           one log line for each request
metrics.py               counters, gauges and histograms
metric_catalogue.py      every metric: its labels and what it means
model_labels.py          the labels of a model in metrics
sampling.py              samples the metrics of a process once a second
prometheus.py            serves the metrics to Prometheus
telemetry.py             the export of metrics to an OpenTelemetry collector
otlp_http.py             the export over HTTP; otlp_target.py says where to
task_group.py            asyncio's task group without a bug of older Pythons

gRPC, from the caller to the handler and back:
rpc_client.py            channels whose calls raise domain errors and carry the tenant and the trace
channel_renewal.py       replaces the connections of a channel when its certificates change
rpc_options.py           keepalive, message sizes, connection age and reconnects, for clients and servers
rpc_server.py            the server: health, reflection, drain
rpc_interceptor.py       around each handler: access, tenant, trace, validation, errors, metrics
in_process.py            calls of a server's methods inside of its process, through its interceptor
call_limiter.py          limits the calls of each client, tenant or worker
frame_server.py          the server side of a stream of frames
stream_rules.py          refusals and requests in flight of a stream
request_context.py       the tenant and the trace of the current request
rpc_status.py            domain errors as gRPC statuses, and back
retrying.py              retries of an operation by a RetryPolicy
schema_checks.py         checks the result schemas in requests
schema_process.py        the child process that applies a result schema

Postgres:
postgres.py              the pool, sessions, transactions, and psycopg's errors as domain errors
dedicated_connection.py  a connection for one writing loop
runner_row.py            renews the row by which the other replicas see that a runner lives
batching.py              group commit: many items in one write
pipelined_transaction.py  transactions whose statements travel together
sql.py                   named statements and migrations
sql_arrays.py            packed arrays as parameters of hot statements

Security:
security.py              the security of one process, made from its settings
access_control.py        authenticates callers and applies the access rule of each method
audit.py                 the audit of one server's calls, and the log of refusals
tls.py                   how a client connects by TLS, and the settings of mutual TLS
certificate_files.py     a process's own certificate, which can be replaced while it runs
certificates.py          makes a certificate authority and certificates
secret_box.py            encrypts the secrets that a store keeps

Others:
signing.py               signatures of fencing tokens
outbound_http.py         an HTTP client for untrusted servers
body_decoder.py          decodes bodies within a bound
name_lookups.py          the addresses of their names
usage_reports.py         reports of what model calls used, sent until the ledger takes them
h11_patterns.py          keeps the parser of HTTP/1.1 from quadratic work
failpoints.py            failpoints, all in one list

What to touch when:
- a domain error gets a new class: `CODES` in rpc_status.py
- a service gets a new failpoint: `declare` in failpoints.py
- a method is added: its `option (access)` in protos/, and its row in tests/security/matrix.tsv
- every service gets a new setting: `CommonSettings` in service.py
"""
