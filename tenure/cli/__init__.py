"""The `tenure` command: a terminal for people, JSON for machines, exit codes that mean something.

main.py        the command group                  context.py     where the gateway is, how to speak
submit.py      submit                             exits.py       what an exit code means
finish.py      wait, cancel                       parameters.py  durations, labels, TASK
show.py        get, list, entries                 words.py       how numbers, times and states are said
operate.py     claims, workers, refusals          facts.py       how one entry is said in a line
leases.py      leases of named resources          keys.py        signing keys
dev.py         the embedded stack (dev_screen.py)

watch.py       watch: events → watched.py (what is known of the task) → narration.py (what is said about it, settled
lines) → screen.py (the lines, and below them what is under way)
"""
