"""The protocol of calls: three writes around an effect, and everything that may come between them.

executing.py   Execute: one call asked for, one answer    execute_stream.py, answers.py      ExecuteStream, and the
messages
accept.py      the first write: fence and record          accept_rules.py            what is let in, and as what (pure)
running.py     between the writes: a place, a time        effects.py                 the effect itself
start_and_finish.py       the second write: the effect begins        start_and_finish.py                  the third:
what came of it
runs.py        the calls this process runs                executing.py               those that other replicas run
closing.py     a task's end: fence up, calls off          closing.py              a pruned task's records go
in_doubt.py      calls in doubt, for people                 audit_log.py, audit_log.py     what audits read
records.py     a call as asked for, and as recorded       accept.py                   reading them to decide
metrics.py    what is counted
"""
