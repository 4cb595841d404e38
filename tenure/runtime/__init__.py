"""The common parts of all processes: start and stop, gRPC, Postgres, outbound HTTP, signatures, fault tests.

process, in this folder:
  settings.py         one frozen dataclass of settings per process, read from the environment
  release.py          the release that runs
  service.py          starts a service: settings, logs, failpoints, telemetry, its own composition; asks for its health
  process.py          signals, orderly close and exit codes; the duties (background coroutines that are restarted)
  fast_start.py       imports without garbage collection, for a fast start
  forks.py            programs that start as forks of a process that has imported them
  fork_server.py      that process: a fork for each request
  running_stack.py    finds the development stack that runs on a data directory
  listening.py        the error of a process that cannot listen on its address
  eager.py            asyncio tasks that make their first step at once
  task_group.py       asyncio's task group without a bug of older Pythons
  request_context.py  the tenant and the trace of the current request
  retrying.py         retries of an operation by a RetryPolicy
  schema_checks.py    checks the result schemas in requests, and answers, in child processes
  expressions.py      evaluates CEL expressions in a child process; evaluate_expressions.py is the child
  usage_reports.py    reports of what model calls used, sent until the ledger takes them
  failpoints.py       failpoints, all in one list

rpc/            gRPC, from the caller to the handler and back
store/          Postgres: connections, transactions, statements, batches
security/       certificates, identities, signatures, secrets, audit
observability/  logs, metrics, telemetry
http/           an HTTP client for untrusted servers

What to touch when:
- a domain error gets a new class: `CODES` in rpc/status.py
- a service gets a new failpoint: `declare` in failpoints.py
- a method is added: its `option (access)` in protos/, and its row in tests/security/matrix.tsv
- every service gets a new setting: `CommonSettings` in service.py
"""
