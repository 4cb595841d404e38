"""The checkpoint service: the only writer of the ledger in Postgres.

main.py           settings and composition of the process
servicer.py       CheckpointService: each RPC calls one function of the packages below
task_defaults.py  the defaults of new tasks and forks
submit/           creates tasks: submits, forks, sub-agents
agents/           agents by name: their revisions, and the pin of a new task
queue/            offers tasks to coordinators, requeues lost claims, sweeps what is due, keeps the stops of operators
epochs.py         epochs, and the generation of etcd
lease_grants.py   the grants of named leases
commit/           Open, commits, external entries, operator requests: every write to an existing task
waits/            waits for answers, signals, sub-agents and resolutions
approvals/        approver groups, and the links by which people answer waits
audit.py          the audit log
bills.py          bills of model attempts, and usage reports of lost model calls
prices.py         prices of models
repeats.py        the results of earlier equal requests
rows.py           the rows of a task: each column once, with the statements that read and write it
columns.py        lists of columns in statements and arrays of batches, from the classes of rows
ledger_batches.py batches of one kind of write on a connection of their own: creates, opens
locked_rows.py    batches whose locked rows are left out
reads.py          reads of tasks and entries for the gateway
lists.py          the tasks that a filter selects, in pages, and their numbers
task_words.py     the words by which a search finds a task
page_tokens.py    tokens of pages that are sorted by a time and a task id
standby.py        chooses where a read runs: at a hot standby of Postgres, or at the primary
watch/            streams of entries and changes
traces/           spans projected from the ledger, and their export
retention/        pruning of ended tasks; retention_rules.py the time of retention, and batches of a prune
tenants/          quotas, usage windows and billed usage of tenants
schedules/        schedules and their runs
webhooks/         webhooks and their deliveries
halt_rules.py     when a task whose worker halted is tried again
row_lease.py      a replica's time-limited right to the work that one row describes
comparing.py      compares the ledger with other records after a restore, task by task
comparing_tool_calls.py, comparing_model_calls.py  with the records of the tool service, of the model runners
entries.py        entry kinds, and reading entries in pages
not_found.py      the error for a missing or pruned task
queries.py        the SQL statements and the connections that run them
sql/              statements and migrations; an applied migration never changes, its checksum is verified
"""
