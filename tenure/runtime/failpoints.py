"""Failpoints: named places in the code where a test stops, kills or fails the process.

TENURE_FAILPOINTS arms them: `<name>=<term>-><term>;<name>=…`. A term is an action, such as `kill9` or `sleep(500)`. The
prefix `3#` takes the action only at the third hit, and `0.1*` takes it with this probability. A name without `=` turns
on a switch.

This one list has the names of all services, so that all processes can get the same setting and a typo in it is an
error. A name is `<service>.<moment>`; the code calls `await failpoint("<name>")` at that moment. Each description says
what has happened at that moment and what has not. A switch turns a guard off, to prove that a test detects this.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from tenure.domain import errors
from tenure.runtime.observability import metrics
from tenure.runtime.observability.logs import logged_context
from tenure.runtime.rpc.status import CODES, from_plain
from tenure.runtime.settings import ConfigurationError

_declared: dict[str, str] = {}
_switches: dict[str, str] = {}


def declare(name: str, why: str) -> str:
    """Declares a failpoint. A name can be declared once."""
    assert name not in _declared, f"the failpoint {name} is declared twice"
    _declared[name] = why
    return name


def declare_switch(name: str, why: str) -> str:
    """Declares a switch. A name can be declared once."""
    assert name not in _switches, f"the switch {name} is declared twice"
    _switches[name] = why
    return name


# The boundaries of a worker's step. A crash at any of them must cost at most the model call in flight.
declare("worker.after_grant", "the claim is granted, the task not opened")
declare("worker.after_open", "the history is read, nothing is done")
declare("worker.after_reserve", "the reservation is committed, the model call not sent")
declare("worker.before_model", "the model attempt is in the ledger, the request not sent")
declare("worker.after_model", "the provider billed the answer, the ledger does not have it")
declare("worker.before_correction", "an invalid final answer is in the ledger, the correction for the agent is not")
declare("worker.before_failure", "the model call failed, the ledger does not have the failure")
declare("worker.after_failure", "the failure is committed, the next attempt not reserved")
declare("worker.after_intent", "the intents are committed, no tool is called")
declare("worker.before_own_tool", "the order to run an own tool arrived, the trust window is not looked at yet")
declare("worker.after_own_tool", "an own tool has ended, its outcome is not sent")
declare("worker.after_keep", "a result too large for the ledger is in the workspace, the ledger does not refer to it")
declare("worker.after_execute", "only the worker has the outcomes, or the result of a function's step")
declare("worker.after_outcome", "the outcomes are committed, the next model attempt is not")
declare("worker.after_fence", "the tool fence is closed, the close-out that needs it not committed")
declare("worker.before_close_out", "the work is done, the close-out not committed")
declare("worker.after_close_out", "the close-out is committed, the claim not released")

# Around each transaction of the checkpoint service: an acknowledged write is durable, any other write may be.
declare("checkpoint.before_create", "the submit is received, nothing is written")
declare("checkpoint.after_create", "the task is created, the client has no answer")
declare("checkpoint.after_prepare", "the fork's task id is assigned, none of its files are copied")
declare("checkpoint.before_foreign", "the external entry is received, nothing is written")
declare("checkpoint.after_foreign", "the external entry is durable, the client has no answer")
declare("checkpoint.before_signal", "the signal is received, nothing is written")
declare("checkpoint.after_signal", "the signal is stored or has answered a wait, the sender has no answer")
declare("checkpoint.before_offer", "a coordinator asked for offers, no task is set aside")
declare("checkpoint.after_offer", "tasks are set aside for a coordinator that has no answer")
declare("checkpoint.before_register", "the claims are in etcd, none is a grant")
declare("checkpoint.after_register", "the grants are registered, the coordinator has no answer")
declare("checkpoint.before_open", "the fence is not raised")
declare("checkpoint.after_open", "the fence is raised, the history not sent")
declare("checkpoint.before_commit", "nothing of the batch is written")
declare("checkpoint.after_commit", "the batch is durable, no worker has an answer")
declare("checkpoint.before_requeue", "the claim is gone, its task still RUNNING")
declare("checkpoint.after_requeue", "the task is requeued, the caller has no answer")
declare("checkpoint.before_sweep", "rows are due, none is locked")
declare("checkpoint.after_sweep", "the due rows are changed, no notification is sent")
declare("checkpoint.after_events", "the changes are stored as deliveries, none is sent")
declare("checkpoint.after_delivery", "the webhook has the delivery, the ledger does not know")
declare("checkpoint.before_raise", "the generation is to be raised, the ledger has the old one")
declare("checkpoint.after_raise", "the ledger has the new generation, etcd the old one")
declare("checkpoint.before_prune", "ended tasks past their retention are locked, not deleted")
declare("checkpoint.after_prune", "the task rows are deleted, their entries and the tool service's data are not")
declare("checkpoint.before_clear", "entries of a pruned task, perhaps only a part, are to be deleted")
declare("checkpoint.after_clear", "some entries of a pruned task are deleted")
declare("checkpoint.before_refusals", "refused writes are only in the log")
declare("checkpoint.after_refusals", "refused writes are stored, and still in the queue to be stored")

# Around each write of the tool service, and around the effect of a call, which cannot be undone.
declare("tools.before_life", "the process has no runner row")
declare("tools.after_life", "the runner row is written, the process does not know")
declare("tools.before_renewal", "the runner's row is about to expire")
declare("tools.after_renewal", "the runner's row is renewed, the process does not know")
declare("tools.before_accept", "the call is received, nothing is written")
declare("tools.after_first_write", "a new call is recorded, and as STARTED if it can begin; the process does not know")
declare("tools.before_ruled_accept", "the rules of a call are evaluated, nothing is written")
declare("tools.bounds_locked", "the counters of a batch of calls are locked and read, no call of it is decided")
declare("tools.after_ruled_accept", "a call of a tenant with rules is recorded and counted; the process does not know")
declare("tools.after_accept", "the call is recorded as ACCEPTED, not as STARTED")
declare("tools.before_start", "the call is about to be recorded as STARTED")
declare("tools.before_effect", "the call is recorded as STARTED, the effect not begun")
declare("tools.before_withdraw", "the call is recorded as STARTED, the effect will never begin")
declare("tools.after_withdraw", "the STARTED mark is withdrawn, the next call attempt not marked")
declare("tools.after_settling", "the begin of a settlement is recorded, nothing is repeated")
declare("tools.before_repeat", "a call of unknown end is about to be sent again")
declare("tools.before_check", "the check of a call of unknown end is about to be called")
declare("tools.after_effect", "the effect happened, the outcome is not recorded")
declare("tools.after_outcome", "the outcome is recorded, the worker has no answer")
declare("tools.before_fence", "the request is received, the fence not raised")
declare("tools.after_fence", "the fence is raised, running calls are not stopped")
declare("tools.before_settle", "the fence is closed, calls of dead runners are not settled")
declare("tools.after_settle", "calls of dead runners are in doubt, the caller has no answer")

declare("tools.after_copy", "the fork's files are copied, the fork does not exist")
declare("tools.before_forget", "the fence of a pruned task is closed for good, its records exist")
declare("tools.after_forget", "the records of a pruned task are deleted, its files exist and the ledger does not know")
declare("tools.before_removal", "the files of a pruned task are to be deleted")

# Around each of the coordinator's writes to etcd, and between etcd and the ledger.
declare("coordinator.before_session", "a worker asked for a session, etcd has nothing of it")
declare("coordinator.after_lease", "the etcd lease exists, the session does not")
declare("coordinator.after_session", "the session exists, the worker does not know")
declare("coordinator.before_reattach", "a worker reattaches, its session is attached to another coordinator")
declare("coordinator.after_reattach", "the session is attached here, the worker does not know")
declare("coordinator.before_session_end", "the stream broke, the session lives")
declare("coordinator.before_revoke", "the session key is deleted, its lease and claims exist")
declare("coordinator.after_revoke", "the claims are deleted, their tasks RUNNING")
declare("coordinator.before_claim", "offers are set aside, none is claimed")
declare("coordinator.after_claim", "the claim is in etcd, not registered in the ledger")
declare("coordinator.after_register", "the grant is registered, not sent")
declare("coordinator.before_delete", "the claims are to be deleted")
declare("coordinator.after_delete", "the claims are deleted, their tasks RUNNING or waiting for the next claim")
declare("coordinator.before_drain", "an operator asked to drain a worker, etcd has no mark")
declare("coordinator.after_drain", "the drain mark is in etcd, the operator has no answer")
declare("coordinator.before_requeue", "the claim is gone, its task still RUNNING")
declare("coordinator.after_requeue", "the task is in the queue, no coordinator is notified")
declare("coordinator.before_raise", "the generations of etcd and the ledger differ")
declare("coordinator.after_ledger_raise", "the ledger's generation is above etcd's")
declare("coordinator.after_raise", "both generations are raised, older claims still exist")
declare("coordinator.after_ending_claim", "a task with a pending ending is claimed, not registered")
declare("coordinator.before_ending_open", "the grant is registered, the old owner can still commit")
declare("coordinator.after_ending_open", "the ledger's fence is raised, the tool fence is not")
declare("coordinator.before_ending_commit", "the tool fence is closed, the close-out not committed")
declare("coordinator.before_ending_release", "the close-out is committed, the claim exists")
declare("coordinator.before_forget", "tasks are pruned, the tool service does not know")
declare("coordinator.after_forget", "the tool service has forgotten the pruned tasks, the ledger does not know")
declare("coordinator.after_lease_claim", "a named lease is claimed in etcd, not registered in the ledger")
declare("coordinator.after_lease_register", "the grant of a named lease is registered, no holder has its token")

# The writes of a model call at a model runner. A death costs at most the call: it is LOST, unless it was not sent.
declare("models.before_admission", "the request has arrived, nothing is recorded")
declare("models.before_call", "the call is SENT, its request has not gone out")
declare("models.before_end", "the answer is complete, its record is not written")

declare_switch(
    "worker.ignore_trust_window", "the worker ignores the loss of its claims, so only fences stop its effects"
)
declare_switch("coordinator.deaf_watch", "the key watch reports nothing, so only reconciliation finds lost claims")

FAILPOINTS: Final = _declared
SWITCHES: Final = _switches


# Arming and hitting. A failpoint that is not armed costs one lookup in an empty dict.

_TERM: Final = re.compile(
    r"(?:(?P<nth>[1-9]\d*)#|(?P<odds>[01]?\.\d+|[01])\*)?(?P<action>[a-z0-9]+)(?:\((?P<argument>.*)\))?"
)
_POLL_SECONDS: Final = 0.01


@dataclass(slots=True)
class _Term:
    """One action with its condition: at the nth hit (None: at every hit) and with the probability `odds`."""

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
    """One armed failpoint with its terms."""

    name: str
    terms: list[_Term] = field(default_factory=list)

    async def hit(self) -> None:
        metrics.count("tenure_failpoint_hits_total", failpoint=self.name)
        for term in self.terms:
            await term.hit()


_armed: dict[str, _Armed] = {}
_enabled: set[str] = set()


async def failpoint(name: str) -> None:
    """Takes the actions of the failpoint `name` if it is armed. The name must be declared above."""
    armed = _armed.get(name)
    if armed is not None:
        await armed.hit()


def failpoint_armed(*names: str) -> bool:
    """Whether one of these failpoints is armed. A shortcut past them is not taken then, so that they are reached."""
    return not _armed.keys().isdisjoint(names)


def failpoint_enabled(switch: str) -> bool:
    """Whether a switch is on. Guards ask it, so that a test can turn them off and check that it fails then."""
    return switch in _enabled


def arm(setting: str) -> None:
    """Arms exactly the failpoints of the TENURE_FAILPOINTS value; "" for none.

    Raises ConfigurationError with the list of all problems.
    """
    problems: list[str] = []
    armed: dict[str, _Armed] = {}
    enabled: set[str] = set()
    for point in filter(None, (part.strip() for part in setting.split(";"))):
        name, separator, terms = (part.strip() for part in point.partition("="))
        known: Mapping[str, str] = FAILPOINTS if separator else SWITCHES
        if name not in known:
            problems.append(f"TENURE_FAILPOINTS: {name} is not a {'failpoint' if separator else 'switch'}")
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
    """Disarms all failpoints and turns all switches off."""
    _armed.clear()
    _enabled.clear()


def _terms(name: str, text: str, problems: list[str]) -> Iterator[_Term]:
    for part in text.split("->"):
        match = _TERM.fullmatch(part.strip())
        act = _ACTIONS.get(match["action"]) if match else None
        if match is None or act is None:
            problems.append(f"TENURE_FAILPOINTS: {name}: {part.strip()!r} is not an action")
            continue
        action, argument = match["action"], match["argument"] or ""
        if not _ARGUMENT[action](argument):
            problems.append(f"TENURE_FAILPOINTS: {name}: {action} does not accept the argument {argument!r}")
            continue
        yield _Term(
            partial(_gate, name) if act is _gate else act,
            argument,
            int(match["nth"]) if match["nth"] else None,
            float(match["odds"] or 1),
        )


async def _kill9(_argument: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def _freeze(_argument: str) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


async def _sleep(milliseconds: str) -> None:
    await asyncio.sleep(int(milliseconds) / 1000)


async def _error(name: str) -> None:
    code, reason = _codes()[name]
    raise from_plain(code, reason, "an armed failpoint raised this error", {})


async def _touch(path: str) -> None:
    await asyncio.to_thread(Path(path).touch)


async def _wait(path: str) -> None:
    while not await asyncio.to_thread(Path(path).exists):  # noqa: ASYNC110  another process creates the file
        await asyncio.sleep(_POLL_SECONDS)


async def _gate(name: str, path: str = "") -> None:
    """Says to the Unix socket `path` which failpoint which task has reached, and waits for the answer.

    Without a listener there the test has ended, so the process continues.
    """
    with suppress(ConnectionError, FileNotFoundError):
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            context = logged_context()
            question = {"failpoint": name, "task": context.get("task", ""), "step": context.get("step", 0)}
            writer.write(json.dumps(question).encode() + b"\n")
            await reader.readline()
        finally:
            writer.close()


def _codes() -> dict[str, tuple[int, str]]:
    """Returns the arguments of `error(…)`: the names of gRPC codes and the default reasons of the domain errors."""
    by_code = {code.name: (code.value[0], code.name) for code in grpc.StatusCode if code is not grpc.StatusCode.OK}
    return {**by_code, **{kind.default_reason: (CODES[kind].value[0], kind.default_reason) for kind in errors.LEAVES}}


_ACTIONS: Final[dict[str, Callable[[str], Awaitable[None]]]] = {
    "kill9": _kill9,
    "freeze": _freeze,
    "sleep": _sleep,
    "error": _error,
    "touch": _touch,
    "wait": _wait,
    "gate": _gate,
}
_ARGUMENT: Final[dict[str, Callable[[str], bool]]] = {
    "kill9": lambda text: not text,
    "freeze": lambda text: not text,
    "sleep": str.isdecimal,
    "error": lambda text: text in _codes(),
    "touch": bool,
    "wait": bool,
    "gate": bool,
}
