"""Claims of tasks: from an offer to a grant, and the end of a claim.

queue_watch.py    the ledger's messages: a task is claimable, a task has a pending ending
dispatch.py       when to ask the ledger for offers, and for how many
assigning.py      the session for each offer (pure)
granting.py       claim in etcd, register in the ledger, sign, send; the signing key
issuing.py        signs fencing tokens, and takes up a new signing key

lost_claims.py    claims that end without a close-out: delete the key, requeue the task; releases of workers
key_watch.py      finds lost claims: deleted keys, within milliseconds
stuck_claims.py   finds stuck claims: the worker is alive, but the claim makes no progress
reconcile.py      finds everything else: compares the ledger with etcd every few seconds
close_out.py      pending endings that the owner did not carry out in time

What to touch when a claim shall end for a new reason: the finder above, and `Reason` in tenure/domain/states.py.
"""
