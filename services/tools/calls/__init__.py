"""The protocol of calls: three writes around an effect, and everything that may come between them.

executing.py   Execute: one call asked for, one answer    frames.py, answers.py      ExecuteStream, and the messages
accept.py      the first write: fence and record          accept_rules.py            what is let in, and as what (pure)
running.py     between the writes: a place, a time        effects.py                 the effect itself
start.py       the second write: the effect begins        finish.py                  the third: what came of it
runs.py        the calls this process runs                following.py               those that other replicas run
closing.py     a task's end: fence up, calls off          forgetting.py              a pruned task's records go
doubts.py      calls in doubt, for people                 trails.py, refusals.py     what audits read
records.py     a call as asked for, and as recorded       locks.py                   reading them to decide
measures.py    what is counted
"""
