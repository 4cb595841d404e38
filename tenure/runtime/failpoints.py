"""Every place where a test may break a process, and why just there.

All services' names stand in this one list, so that one setting can be given to all processes and a typo in it is an
error. A name is `<service>.<moment>`; the code says `await failpoint("<name>")` at the moment itself. Names in the
second table are switches: they turn a guard off, to prove that a test would notice.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from tenure.domain import errors
from tenure.runtime import metrics
from tenure.runtime.rpc_status import CODES, from_plain
from tenure.runtime.settings import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

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
declare("worker.before_correction", "an answer is in the ledger and is no result, and the agent was not told")
declare("worker.before_failure", "a call failed, and nobody was told")
declare("worker.after_failure", "a failure is settled, its repeat not reserved")
declare("worker.after_intent", "intents committed, no tool called")
declare("worker.after_execute", "outcomes known to the worker only")
declare("worker.after_outcome", "outcomes committed, the next attempt not")
declare("worker.after_fence", "the tools are closed, the end that needed it not written")
declare("worker.before_close_out", "the work is done, the end not written")
declare("worker.after_close_out", "the end is written, the lease still held")

# The ledger, around each of its transactions: what was acknowledged is there, what was not may be.
declare("checkpoint.before_create", "a submit that left no trace")
declare("checkpoint.after_create", "a task that its client was not told of")
declare("checkpoint.after_prepare", "a fork's id is given out, no files of it are copied")
declare("checkpoint.before_foreign", "a cancel or a message that left no trace")
declare("checkpoint.after_foreign", "a cancel or a message that is durable, and was not acknowledged")
declare("checkpoint.before_signal", "an event came, nothing of it is kept")
declare("checkpoint.after_signal", "an event is kept or taken, its sender was not told")
declare("checkpoint.before_offer", "an offer asked for, nothing set aside")
declare("checkpoint.after_offer", "tasks are set aside for a coordinator that was not told")
declare("checkpoint.before_register", "claims in etcd that are not grants yet")
declare("checkpoint.after_register", "grants that their coordinator does not know of")
declare("checkpoint.before_open", "the fence is not raised yet")
declare("checkpoint.after_open", "the fence is raised, the history not sent")
declare("checkpoint.before_commit", "nothing of the batch is written")
declare("checkpoint.after_commit", "the batch is durable, nobody was told")
declare("checkpoint.before_requeue", "a claim is gone, its task RUNNING for a moment longer")
declare("checkpoint.after_requeue", "a task is in the queue again, and nobody was told")
declare("checkpoint.before_sweep", "tasks are due, their rows not locked yet")
declare("checkpoint.after_sweep", "what was due is done, and nobody was told")
declare("checkpoint.after_events", "changes are written down as deliveries, none is sent")
declare("checkpoint.after_delivery", "a webhook has it, the ledger does not know")
declare("checkpoint.before_raise", "a generation that is to be raised")
declare("checkpoint.after_raise", "the generation is raised here, etcd is behind")
declare("checkpoint.before_prune", "ended tasks whose time is over, locked and still there")
declare("checkpoint.after_prune", "tasks are gone, their entries and all that the tools have of them are not")
declare("checkpoint.before_clear", "entries of a pruned task, a part of them perhaps, that are to go")
declare("checkpoint.after_clear", "some of the entries of a pruned task are gone")
declare("checkpoint.before_refusals", "refused writes that are in the log only")
declare("checkpoint.after_refusals", "refused writes are kept, and still queued to be kept")

# The tools, around each of their writes and the one moment that cannot be taken back.
declare("tools.before_life", "a process that is no runner yet")
declare("tools.after_life", "a runner that nobody heard of")
declare("tools.before_renewal", "a runner whose time runs out")
declare("tools.after_renewal", "a runner that lives longer than it knows")
declare("tools.before_accept", "a call asked for, of which nothing is written")
declare("tools.after_accept", "the call is recorded, not started")
declare("tools.before_start", "a call about to be marked STARTED")
declare("tools.before_effect", "marked STARTED, the effect not begun")
declare("tools.before_withdraw", "marked STARTED, and its effect will never begin")
declare("tools.after_withdraw", "the mark is taken back, the next attempt not marked")
declare("tools.after_effect", "the effect happened, its outcome is not recorded")
declare("tools.after_outcome", "the outcome is recorded, nobody was told")
declare("tools.before_fence", "a fence asked for, not raised")
declare("tools.after_fence", "the fence is raised, what runs not stopped")
declare("tools.before_settle", "a closed fence, calls of dead runners not settled")
declare("tools.after_settle", "calls of dead runners are in doubt, and nobody was told")

declare("tools.after_copy", "a fork's files are in place, and there is no fork")
declare("tools.before_forget", "a pruned task's fence is closed for ever, its records are there")
declare("tools.after_forget", "a pruned task's records are gone, its files are there and the ledger was not told")
declare("tools.before_removal", "a pruned task's files that are to go")

# The coordinator, around each of its writes to etcd, and between etcd and the ledger.
declare("coordinator.before_session", "a worker said hello, and etcd knows nothing of it")
declare("coordinator.after_lease", "a lease without a session")
declare("coordinator.after_session", "a session that its worker does not know of")
declare("coordinator.before_reattach", "a worker came back, its session is attached elsewhere")
declare("coordinator.after_reattach", "the session is attached here, its worker does not know")
declare("coordinator.before_session_end", "a stream broke, its session lives")
declare("coordinator.before_revoke", "the session's key is gone, its lease and claims are not")
declare("coordinator.after_revoke", "the claims are gone, their tasks RUNNING")
declare("coordinator.before_claim", "offers set aside, nothing claimed")
declare("coordinator.after_claim", "the claim is in etcd, not registered in the ledger")
declare("coordinator.after_register", "registered, the grant not sent")
declare("coordinator.before_delete", "claims that are to go")
declare("coordinator.after_delete", "claims that are gone, their tasks RUNNING or waiting for the next claim")
declare("coordinator.before_drain", "an operator wants a worker to drain, and nothing says so")
declare("coordinator.after_drain", "the mark is in etcd, the operator was not told")
declare("coordinator.before_requeue", "a claim is gone, its task still RUNNING")
declare("coordinator.after_requeue", "the task is in the queue, nobody was told to look")
declare("coordinator.before_raise", "generations differ")
declare("coordinator.after_ledger_raise", "the ledger's generation is above etcd's")
declare("coordinator.after_raise", "both are raised, older claims are still there")
declare("coordinator.after_ending_claim", "a task to be ended is claimed, not registered")
declare("coordinator.before_ending_open", "registered, its owner can still commit")
declare("coordinator.after_ending_open", "the ledger's fence is raised, the tools' is not")
declare("coordinator.before_ending_commit", "the tools are closed, the end not written")
declare("coordinator.before_ending_release", "the end is written, the claim still there")
declare("coordinator.before_forget", "pruned tasks that the tools were not told of")
declare("coordinator.after_forget", "pruned tasks that the tools have forgotten, and the ledger does not know it")
declare("coordinator.after_lease_claim", "a named resource is claimed in etcd, not registered in the ledger")
declare("coordinator.after_lease_register", "the grant of a named resource is registered, nobody has its token")

declare_switch("worker.ignore_trust_window", "a worker deaf to the loss of its claims: only fences stop its effects")
declare_switch("coordinator.deaf_watch", "etcd's watch says nothing: what vanishes is found by comparing lists only")

FAILPOINTS: Final = _declared
SWITCHES: Final = _switches


# Places where a test breaks the process on purpose. Off, one costs a lookup in an empty dict.

_TERM: Final = re.compile(
    r"(?:(?P<nth>[1-9]\d*)#|(?P<odds>[01]?\.\d+|[01])\*)?(?P<action>[a-z0-9]+)(?:\((?P<argument>.*)\))?"
)
_POLL_SECONDS: Final = 0.01


@dataclass(slots=True)
class _Term:
    """One action and when it is taken."""

    act: Callable[[str], Awaitable[None]]
    argument: str
    nth: int | None
    odds: float
    hits: int = 0

    async def hit(self) -> None:
        self.hits += 1
        if self.nth is not None and self.hits != self.nth:
            return
        if self.odds < 1 and random.random() >= self.odds:
            return
        await self.act(self.argument)


@dataclass(slots=True)
class _Armed:
    """One failpoint as set."""

    name: str
    terms: list[_Term] = field(default_factory=list)

    async def hit(self) -> None:
        metrics.count("tenure_failpoint_hits_total", failpoint=self.name)
        for term in self.terms:
            await term.hit()


_armed: dict[str, _Armed] = {}
_enabled: set[str] = set()


async def failpoint(name: str) -> None:
    """The place `name`. Does nothing unless it was armed; the name must be declared in `failpoint_names`."""
    armed = _armed.get(name)
    if armed is not None:
        await armed.hit()


def failpoint_enabled(switch: str) -> bool:
    """Whether a switch is on: for the guards that a test turns off to see itself fail."""
    return switch in _enabled


def arm(setting: str) -> None:
    """Set all failpoints from TENURE_FAILPOINTS, "" for none. Raises ConfigurationError with all that is wrong."""
    problems: list[str] = []
    armed: dict[str, _Armed] = {}
    enabled: set[str] = set()
    for point in filter(None, (part.strip() for part in setting.split(";"))):
        name, separator, terms = (part.strip() for part in point.partition("="))
        known: Mapping[str, str] = FAILPOINTS if separator else SWITCHES
        if name not in known:
            problems.append(f"TENURE_FAILPOINTS: {name} is no {'failpoint' if separator else 'switch'}")
        elif not separator:
            enabled.add(name)
        else:
            armed[name] = _Armed(name, list(_terms(name, terms, problems)))
    if problems:
        raise ConfigurationError(problems)
    disarm()
    _armed.update(armed)
    _enabled.update(enabled)


def disarm() -> None:
    """All off."""
    _armed.clear()
    _enabled.clear()


def _terms(name: str, text: str, problems: list[str]) -> Iterator[_Term]:
    for part in text.split("->"):
        match = _TERM.fullmatch(part.strip())
        act = _ACTIONS.get(match["action"]) if match else None
        if match is None or act is None:
            problems.append(f"TENURE_FAILPOINTS: {name}: {part.strip()!r} is no action")
            continue
        action, argument = match["action"], match["argument"] or ""
        if not _ARGUMENT[action](argument):
            problems.append(f"TENURE_FAILPOINTS: {name}: {action} cannot take {argument!r}")
            continue
        yield _Term(act, argument, int(match["nth"]) if match["nth"] else None, float(match["odds"] or 1))


async def _kill9(_argument: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _freeze(_argument: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


async def _sleep(milliseconds: str) -> None:
    await asyncio.sleep(int(milliseconds) / 1000)


async def _error(name: str) -> None:
    code, reason = _codes()[name]
    raise from_plain(code, reason, "a failpoint was armed here", {})


async def _touch(path: str) -> None:
    await asyncio.to_thread(Path(path).touch)


async def _wait(path: str) -> None:
    while not await asyncio.to_thread(Path(path).exists):  # noqa: ASYNC110  another process makes the file
        await asyncio.sleep(_POLL_SECONDS)


def _codes() -> dict[str, tuple[int, str]]:
    """What `error(…)` may name: a gRPC code, or the default reason of one of our errors."""
    by_code = {code.name: (code.value[0], code.name) for code in grpc.StatusCode if code is not grpc.StatusCode.OK}
    return {**by_code, **{kind.default_reason: (CODES[kind].value[0], kind.default_reason) for kind in errors.LEAVES}}


_ACTIONS: Final[dict[str, Callable[[str], Awaitable[None]]]] = {
    "kill9": _kill9,
    "freeze": _freeze,
    "sleep": _sleep,
    "error": _error,
    "touch": _touch,
    "wait": _wait,
}
_ARGUMENT: Final[dict[str, Callable[[str], bool]]] = {
    "kill9": lambda text: not text,
    "freeze": lambda text: not text,
    "sleep": str.isdecimal,
    "error": lambda text: text in _codes(),
    "touch": bool,
    "wait": bool,
}
