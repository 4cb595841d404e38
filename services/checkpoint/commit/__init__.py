"""Writes to the ledger of existing tasks: Open, Commit, external entries and operator requests.

prepared.py           checks and decodes a commit request before it waits for its batch
owner_bodies.py       checks that an entry that an owner commits can be read again
commit_stream.py      CommitStream: the frames of one worker's commits and results
committer.py          the connection that writes batches of commits, and its errors
committing.py         one batch in one transaction: lock, decide, apply, write
opener.py             the batches that open tasks
opening.py            Open: one batch in one transaction raises the fences and reads the first pages of the histories
external_entries.py   entries of users and operators (AppendForeign), and what an owner has not read of them
operator_requests.py  requeue, budget grant, close-out and resolution by an operator
close_out.py          pending endings and phase timeouts that the ledger carries out itself
outputs.py            outputs of tasks: from the intent of record_output to the close-out
task_row.py           locks task rows and the budgets of their roots; the wait in a task row
draft.py              the changes of one transaction to one task row
writing.py            writes drafts to the database
refused_writes.py     the record of writes that a fence refused

Every write has the same order: lock the task row (task_row.py), decide (tenure/domain), change a draft (draft.py),
write it (writing.py).

What to touch when a task gets a column: a migration, and ../rows.py, which says which statements read and write it.
What to touch when owners may write a new entry kind: ledger.proto, `services/checkpoint/entries.py` and
tenure/wire/ledger.py; if it opens or settles a call, also `_calls` in prepared.py.
"""
