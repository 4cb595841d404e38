"""Compares Tenure with other engines of durable work, in one run: `make bench-peers`.

__main__.py     the command: installs the peers, runs all engines, writes the page
environment.py  the peers' own environment: packages of PyPI and npm, never the project's
requirements.txt  their releases
peers.py        the peers: packages, stores, ways of takeover, settings with their sources
stores.py       the stores: the Postgres of all, the Restate server, the Temporal server
program.py      a program of a peer as a child process; its effects
faults.py       a worker that freezes or dies just before a tool's effect
tenure_engine.py  the same steps and faults on Tenure
results.py      samples, medians and ratios
page.py         the table and the text of docs/peers.md
programs/       the peers' agents, which the other environment runs
"""
