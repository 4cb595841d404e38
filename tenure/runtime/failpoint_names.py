"""Every place where a test may break a process, and why just there.

All services' names stand in this one list, so that one setting can be given to all processes and a typo in it is an
error. A name is `<service>.<moment>`; the code says `await failpoint("<name>")` at the moment itself. Names in the
second table are switches: they turn a guard off, to prove that a test would notice.
"""

from __future__ import annotations

from typing import Final

_declared: dict[str, str] = {}
_switches: dict[str, str] = {}


def declare(name: str, why: str) -> str:
    """Add a failpoint; each name once."""
    assert name not in _declared, f"the failpoint {name} is declared twice"
    _declared[name] = why
    return name


def declare_switch(name: str, why: str) -> str:
    """Add a switch; each name once."""
    assert name not in _switches, f"the switch {name} is declared twice"
    _switches[name] = why
    return name


# The boundaries of a worker's step: a crash at each must cost at most the model call in flight.
declare("worker.after_grant", "a claim that was granted and never opened")
declare("worker.after_open", "an owner that read its history and did nothing")
declare("worker.after_reserve", "a reservation whose call was never sent")
declare("worker.before_model", "the attempt is in the ledger, the request not yet sent")
declare("worker.after_model", "an answer that was paid for and not written down")
declare("worker.after_intent", "intents committed, no tool called")
declare("worker.after_execute", "outcomes known to the worker only")
declare("worker.after_outcome", "outcomes committed, the next attempt not")
declare("worker.before_close_out", "the work is done, the end not written")
declare("worker.after_close_out", "the end is written, the lease still held")

# The ledger: what was acknowledged is there, what was not may be.
declare("checkpoint.before_commit", "nothing of the batch is written")
declare("checkpoint.after_commit", "the batch is durable, nobody was told")
declare("checkpoint.before_open", "the fence is not raised yet")
declare("checkpoint.after_open", "the fence is raised, the history not sent")

# The tools: around the one moment that cannot be taken back.
declare("tools.after_accept", "the call is recorded, not started")
declare("tools.before_effect", "marked STARTED, the effect not begun")
declare("tools.after_effect", "the effect happened, its outcome is not recorded")
declare("tools.after_outcome", "the outcome is recorded, nobody was told")
declare("tools.before_fence", "a fence asked for, not raised")

# The coordinator: between etcd and the ledger.
declare("coordinator.after_claim", "the claim is in etcd, not registered in the ledger")
declare("coordinator.after_register", "registered, the grant not sent")
declare("coordinator.before_requeue", "a claim is gone, its task still RUNNING")

declare_switch("worker.ignore_trust_window", "a worker deaf to the loss of its claims: only fences stop its effects")

FAILPOINTS: Final = _declared
SWITCHES: Final = _switches
