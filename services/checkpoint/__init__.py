"""The checkpoint service: the only writer of the ledger in Postgres.

main.py           settings and composition of the process
servicer.py       CheckpointService: each RPC calls one function of the packages below
task_defaults.py  the defaults of new tasks and forks
submit/           creates tasks: submits, forks, sub-agents
queue/            offers tasks to coordinators, requeues lost claims, sweeps what is due
grants.py         epochs, the generation of etcd, and the grants of named leases
commit/           Open, commits, external entries, operator requests: every write to an existing task
waits/            waits for answers, signals, sub-agents and resolutions
audit.py          the audit log
bills.py          bills of model attempts, and usage reports of lost model calls
prices.py         prices of models
repeats.py        the results of earlier equal requests
locked_rows.py    batches whose locked rows are left out
reads.py          reads of tasks and entries for the gateway
watch/            streams of entries and changes
retention/        pruning of ended tasks
tenants/          quotas, usage windows and billed usage of tenants
schedules/        schedules and their runs
webhooks/         webhooks and their deliveries
entries.py        entry kinds, and reading entries in pages
not_found.py      the error for a missing or pruned task
queries.py        the SQL statements and the connections that run them
sql/              statements and migrations; an applied migration never changes, its checksum is verified
"""
