"""The protocol of tool calls: three writes around an effect.

The writes are: accept (fence and call record), start (the STARTED mark immediately before the effect), finish (the
outcome). Accept and start of a new call that may run again and whose lane has a place are one write. The record proves
after a crash what may have happened.

The files, in the order in which data flows:

execute_stream.py     ExecuteStream: many calls on one stream
executing.py          Execute: accepts calls in batches, and watches those that run in another replica
following.py          follows one Execute: its accept, then the events of its run, by callbacks
records.py            a call as requested, and a call as recorded
accept_new.py         the first write of the usual call: one statement for calls without a record, also for their start
accept.py             the first write of all others: locks and reads fences and records, writes what the rules decided
stops.py              the stops of operators: which calls they cover, how they reach the calls that run
accept_ruled.py       the first write of calls of tenants with rules on arguments
tenant_batches.py     one batch of these calls for each tenant at a time
bounds.py             judges these calls, and counts them under the locks of their counters
accept_rules.py       the rules of the first write (pure): admit or refuse, run, join, answer from the record
running.py            runs an accepted call: lane, start, effect, outcome
lanes.py              how many calls of a lane run at once, shared by tenants
start_and_finish.py   the second write (the start) and its withdrawal; the third write (the outcome)
effect_keys.py        the same effect once: gives effect keys to calls that are about to run; the end of effects
caller_runs.py        the tool whose calls their caller runs itself: the order to run, and the wait for the outcome
settling.py           settles a call whose end is unknown: repeats it with its key, asks its check
effects.py            one execution of a tool: bounded in time, stopped on request
runs.py               the calls that this process runs, and the listeners to their events
answers.py            converts events, call records and refused writes to messages

closing.py            Fence: raises or closes a fence, stops the task's calls; Forget: deletes a pruned task's records
keeping.py            keeps content that is too large for the ledger, under the lock of the fence
in_doubt.py           ListInDoubtCalls: a tenant's calls in doubt
effect_list.py        ListEffects: a tenant's calls with an effect key
restoring.py          lists records after a restore of the ledger, and puts lost calls in doubt
call_log.py           ListCalls: the call log; ListRefusedCalls: stale writes
metrics.py            metrics and span attributes of calls

What to touch when:
- a call gets a new verdict: accept_rules.py, `AcceptBatch` in accept.py, `Executor._answer_to` in executing.py
- a call record gets a column: a migration, ../sql/queries.sql, `CallRow` in records.py, accept.py, accept_new.py
- a run is stopped for a new reason: `StopReason` in runs.py, effects.py, settling.py
- a call of unknown end gets another way out: tenure/domain/settlement.py, settling.py
"""
