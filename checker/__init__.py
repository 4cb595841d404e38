"""The checker: was what must always be true, true of what happened?

history.py      what was seen: the ledger, the tools' records, etcd, the outside; history.py: the clients
check.py   the one table of invariants, I1 to I39, and why some are not checked here
verify.py       verify(history) → violations; examine(history) → a report that also says what was not looked at
coverage.py     I35: which rare paths a run has met
collect.py      builds histories over the public API, task by task; collect.py reads what is outside

A checker that shares a fault with the product proves nothing: the rules of fences, sequences and intents are stated
here again, in their own words.
"""
