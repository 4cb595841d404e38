"""The common parts of all processes: start and stop, gRPC, Postgres, outbound HTTP, signatures, fault tests.

Process:
settings.py              one frozen dataclass of settings per process, read from the environment
service.py               starts a service: settings, logs, failpoints, telemetry, then its own composition
process.py               signals, orderly close and exit codes; the duties (background coroutines that are restarted)
fast_start.py            imports without garbage collection, for a fast start
logs.py                  log formats, and the fields of the log context
metrics.py               counters, gauges and histograms
telemetry.py             the export of metrics to an OpenTelemetry collector
task_group.py            asyncio's task group without a bug of older Pythons

gRPC, from the caller to the handler and back:
rpc_client.py            channels whose calls raise domain errors and carry the tenant and the trace
rpc_options.py           keepalive, message sizes, connection age and reconnects, for clients and servers
rpc_server.py            the server: health, reflection, drain
rpc_interceptor.py       around each handler: access, tenant, trace, validation, errors, metrics
request_context.py       the tenant and the trace of the current request
rpc_status.py            domain errors as gRPC statuses, and back
retrying.py              retries of an operation by a RetryPolicy
schema_checks.py         checks the result schemas in requests
schema_process.py        the child process that applies a result schema

Postgres:
postgres.py              the pool, sessions, transactions, and psycopg's errors as domain errors
dedicated_connection.py  a connection for one writing loop
batching.py              group commit: many items in one write
sql.py                   named statements and migrations
sql_arrays.py            packed arrays as parameters of hot statements

Security:
security.py              the security of one process, made from its settings
access_control.py        authenticates callers and applies the access rule of each method
tls.py                   how a client connects by TLS, and the settings of mutual TLS
certificate_files.py     a process's own certificate, which can be replaced while it runs
certificates.py          makes a certificate authority and certificates

Others:
signing.py               signatures of fencing tokens
outbound_http.py         an HTTP client for untrusted servers
usage_reports.py         reports of what model calls used, sent until the ledger takes them
failpoints.py            failpoints, all in one list

What to touch when:
- a domain error gets a new class: `CODES` in rpc_status.py
- a service gets a new failpoint: `declare` in failpoints.py
- a method is added: its `option (access)` in protos/, and its row in tests/security/matrix.tsv
- every service gets a new setting: `CommonSettings` in service.py
"""
