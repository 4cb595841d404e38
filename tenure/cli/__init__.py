"""The `tenure` command: a terminal for people, JSON for machines, exit codes that mean something.

main.py        the command group                  context.py     where the gateway is, how to speak
submit.py      submit                             exit_codes.py       what an exit code means
tasks.py      wait, cancel                       parameters.py  durations, labels, TASK
tasks.py        get, list, entries                 formatting.py       how numbers, times and states are said
workers.py     claims, workers, refusals          entry_lines.py       how one entry is said in a line
leases.py      leases of named resources          keys.py        signing keys
dev.py         the embedded stack (dev.py)

watch.py       watch: events → watch_state.py (what is known of the task) → narration.py (what is said about it, settled
lines) → watch.py (the lines, and below them what is under way)
"""
