"""What clients were promised: what was acknowledged is there, once, and only what somebody asked for."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import Final

from checker.check import Check, SumCheck, Violation
from checker.checks.fencing import OWNERS_ONLY
from checker.checks.tool_calls import resolutions
from checker.history import (
    LedgerEntry,
    Method,
    Operation,
    OperationResult,
    Subscription,
    TaskHistory,
)
from checker.reading import (
    claim,
    ends,
    of_kind,
    own,
    place,
)
from tenure.domain.entries import CancelRequest, ModelAttempt, OperatorCloseOut, OperatorRequest, Submitted, UserMessage
from tenure.domain.states import TaskState


def what_was_acknowledged_is_there(task: TaskHistory) -> Iterator[str]:
    """I9, of submits, cancels, words on calls in doubt, and reads."""
    for done in task.operations:
        if done.answer is not OperationResult.OK or not task.task_id:
            continue
        if task.row is None:
            yield f"{done.client} was answered {done.method} of a task that is not there"
        elif done.sequence is not None and task.row.sequence < done.sequence:
            yield f"{done.client} was told of sequence {done.sequence}, the ledger ends at {task.row.sequence}"
        elif done.method is Method.CANCEL and not _is_cancelled(task):
            yield f"the cancel of {done.client} was acknowledged, and the ledger has no request of it"
        elif done.method is Method.RESOLVE and (done.call_id, done.call_attempt) not in _said(task):
            yield f"the word of {done.client} on call {done.call_id} was acknowledged, and the ledger does not have it"


def commits_that_were_acknowledged_are_there(task: TaskHistory) -> Iterator[str]:
    """I9, of own loops' commits: their entries, in order, under their claim."""
    kept: defaultdict[tuple[int, str], list[bytes]] = defaultdict(list)
    for entry in task.entries:
        kept[entry.fence].append(entry.body_hash)
    for commit in task.operations:
        if commit.method is not Method.COMMIT or commit.answer is not OperationResult.OK or commit.fence is None:
            continue
        if not _has_run(kept[commit.fence], commit.body_hashes):
            yield (
                f"commit {commit.request_id} of {commit.client} under {claim(commit.fence)} was acknowledged, "
                "and its entries are not in the ledger"
            )


def nothing_came_from_nowhere(task: TaskHistory) -> Iterator[str]:
    """I10: submits, cancels and words have a client, and what own loops wrote was in a commit of theirs."""
    operations = [op for op in task.operations if op.answer is not OperationResult.FAILED]
    methods = {op.method for op in operations}
    if task.entries and Method.SUBMIT not in methods and not _may_be_submitted(task):
        yield "no client has submitted this task"
    for entry, _ in of_kind(task.entries, CancelRequest):
        if Method.CANCEL not in methods and not _is_sub_agent(task):
            yield f"{place(entry)} asks for the end, and no client did"
    given = {(op.call_id, op.call_attempt) for op in operations if op.method is Method.RESOLVE}
    for entry, resolution in resolutions(task):
        if (resolution.call_id, resolution.call_attempt) not in given:
            yield (
                f"{place(entry)} is a word on attempt {resolution.call_attempt} of call {resolution.call_id}, "
                f"and nobody gave it"
            )
    sent = {(op.fence, body) for op in operations if op.method is Method.COMMIT for body in op.body_hashes}
    logged = {fence for fence, _ in sent}
    for entry in task.entries:
        owned = isinstance(entry.body, OWNERS_ONLY) and not isinstance(entry.body, ModelAttempt)
        if owned and entry.fence in logged and (entry.fence, entry.body_hash) not in sent:
            yield f"{place(entry)} was in no commit of {claim(entry.fence)}"


def facts_come_once(task: TaskHistory) -> Iterator[str]:
    """I11: a request that was sent again did its work once."""
    first: dict[str, str] = {}
    for entry, message in of_kind(own(task.entries), UserMessage):
        if message.request_id and message.request_id in first:
            yield f"{place(entry)} repeats request {message.request_id} of {first[message.request_id]}"
        first.setdefault(message.request_id, place(entry))
    cancels: dict[int, LedgerEntry] = {}
    for entry in task.entries:
        match entry.body:
            case OperatorRequest(act=OperatorCloseOut()):
                cancels.pop(entry.attempt, None)  # the newest request for an end counts: a cancel may follow it
            case CancelRequest():
                before = cancels.setdefault(entry.attempt, entry)  # an attempt that was requeued may be cancelled, too
                if before is not entry:
                    yield f"{place(entry)} asks for the end again, after {place(before)}"
    for entry, _ in list(of_kind(task.entries, Submitted))[1:]:
        yield f"{place(entry)} submits the task again"


def commits_come_once(task: TaskHistory) -> Iterator[str]:
    """I11: a commit that was sent again is answered as the first time."""
    answers: dict[str, int | None] = {}
    for commit in task.operations:
        if commit.method is not Method.COMMIT or commit.answer is not OperationResult.OK:
            continue
        if answers.setdefault(commit.request_id, commit.sequence) != commit.sequence:
            yield (
                f"commit {commit.request_id} was answered with sequence {answers[commit.request_id]}, "
                f"and again with {commit.sequence}"
            )


def readers_saw_their_own(task: TaskHistory) -> Iterator[str]:
    """I28."""
    for read in task.operations:
        owner = read.seen_tenant or (task.row.tenant if task.row is not None else read.tenant)
        if read.answer is OperationResult.OK and owner != read.tenant:
            yield f"{read.client} of tenant {read.tenant} was given a task of tenant {owner}"
    for stream in task.subscriptions:
        if stream.delivered and task.row is not None and task.row.tenant != stream.tenant:
            yield f"{stream.client} of tenant {stream.tenant} was told of a task of tenant {task.row.tenant}"


class _RequestIds:
    """I27, of the ledger: a request id names one task of its tenant. Kept: a short hash for each."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, str] = {}
        self._violations: list[Violation] = []

    def add(self, task: TaskHistory) -> None:
        goal = next(of_kind(task.entries, Submitted), None)
        if goal is None or task.row is None or not goal[1].request_id:
            return
        named = hashlib.blake2b(f"{task.row.tenant}\0{goal[1].request_id}".encode(), digest_size=12).digest()
        other = self._tasks.setdefault(named, task.task_id)
        if other != task.task_id:
            message = f"it has the request id {goal[1].request_id}, and so has task {other} of the same tenant"
            self._violations.append(Violation("I27", task.task_id, message))

    def violations(self) -> list[Violation]:
        return self._violations


class _Submits:
    """I27, as clients saw it: one task for one request, another payload refused."""

    def __init__(self) -> None:
        self._submits: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)

    def add(self, task: TaskHistory) -> None:
        for op in task.operations:
            if op.method is Method.SUBMIT and op.request_id:
                self._submits[op.tenant, op.request_id].append(op)

    def violations(self) -> Iterator[Violation]:
        for (_, request_id), submits in self._submits.items():
            taken = [op for op in submits if op.answer is OperationResult.OK]
            for op in taken[1:]:
                if op.task_id != taken[0].task_id:
                    message = f"{op.client} was given it for request {request_id}, {taken[0].client} task"
                    yield Violation("I27", op.task_id, f"{message} {taken[0].task_id}")
                elif op.request_hash != taken[0].request_hash:
                    message = f"request {request_id} was accepted with two payloads"
                    yield Violation("I27", op.task_id, f"{message}, of {taken[0].client} and of {op.client}")


def _is_cancelled(task: TaskHistory) -> bool:
    assert task.row is not None
    return task.row.state is TaskState.CANCELLED or any(True for _ in of_kind(task.entries, CancelRequest))


def _said(task: TaskHistory) -> set[tuple[str, int]]:
    return {(resolution.call_id, resolution.call_attempt) for _, resolution in resolutions(task)}


def _may_be_submitted(task: TaskHistory) -> bool:
    """A submit whose answer was lost does not know its task; its request id is looked for among those without one."""
    goal = next(of_kind(task.entries, Submitted), None)
    return goal is None or goal[1].request_id in task.lost_request_ids or _is_sub_agent(task)


def _is_sub_agent(task: TaskHistory) -> bool:
    """Asked for by its parent's call, and ended with it."""
    return any(goal.spawned_by is not None for _, goal in of_kind(task.entries, Submitted))


def _has_run(kept: list[bytes], wanted: tuple[bytes, ...]) -> bool:
    """Whether the wanted hashes stand in this order."""
    remaining = iter(kept)
    return all(body in remaining for body in wanted)


_SUBMITS_CHECKS: Final = (
    Check("I9", "what was acknowledged is there", ("operations", "tasks", "entries"), what_was_acknowledged_is_there),
    Check("I9", "acknowledged commits are there", ("operations", "entries"), commits_that_were_acknowledged_are_there),
    Check("I10", "nothing came from nowhere", ("operations", "entries"), nothing_came_from_nowhere),
    Check("I11", "repeated requests did their work once", ("entries",), facts_come_once),
    Check("I11", "repeated commits are answered alike", ("operations",), commits_come_once),
    Check("I28", "nobody sees another tenant's tasks", ("operations", "tasks"), readers_saw_their_own),
    SumCheck("I27", "a request id names one task", ("tasks", "entries"), _RequestIds),
    SumCheck("I27", "one request gave one task", ("operations",), _Submits),
)


# What watchers were told: the ledger as it is, in order, without a gap, to its end.

FRESH_SECONDS: Final = 2.0


def streams_are_the_ledger(task: TaskHistory) -> Iterator[str]:
    """I24."""
    hashes = {entry.sequence: entry.body_hash for entry in task.entries}
    for stream in task.subscriptions:
        expected = stream.after_sequence + 1
        for event in stream.delivered:
            if event.resync:
                expected = max(expected, event.sequence)
            if event.sequence != expected:
                yield f"{_named(stream)} got entry {event.sequence} where {expected} was due"
            if event.sequence not in hashes:
                yield f"{_named(stream)} got entry {event.sequence}, which the ledger does not have"
            elif event.body_hash and event.body_hash != hashes[event.sequence]:
                yield f"{_named(stream)} got another entry {event.sequence} than the ledger has"
            expected = event.sequence + 1


def streams_end_with_the_end(task: TaskHistory) -> Iterator[str]:
    """I24: a stream that the server ended by itself has told an end, and tells it last."""
    told_ends = {end.sequence: end for end in ends(task.entries)}
    for stream in task.subscriptions:
        sequences = [event.sequence for event in stream.delivered]
        last = max([stream.after_sequence, *sequences])
        if stream.ended and last not in told_ends:
            end = next((end for sequence, end in told_ends.items() if sequence > last), None)
            yield f"{_named(stream)} was ended after entry {last}, " + (
                f"before {place(end)}" if end is not None else "and the task has not ended"
            )


def ends_are_told_soon(task: TaskHistory) -> Iterator[str]:
    """I25."""
    assert task.unix_minus_monotonic_seconds is not None
    for stream, end in product(task.subscriptions, list(ends(task.entries))):
        received = _received(stream, end)
        if received is None:
            continue
        since = max(end.recorded_at - task.unix_minus_monotonic_seconds, stream.opened_monotonic)
        if received - since > FRESH_SECONDS:
            yield f"{_named(stream)} was told of {place(end)} {received - since:.1f} s after it was committed"


def reads_follow_what_was_seen(task: TaskHistory) -> Iterator[str]:
    """I26: a client that has seen an entry never reads an older task afterwards."""
    seen: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for stream in task.subscriptions:
        seen[stream.client] += [(event.received_monotonic, event.sequence) for event in stream.delivered]
    reads = [read for read in task.operations if read.method is Method.GET and read.answer is OperationResult.OK]
    for read in reads:
        if read.sequence is not None and read.returned_monotonic is not None:
            seen[read.client].append((read.returned_monotonic, read.sequence))
    highest = {client: _running_highest(events) for client, events in seen.items()}
    for read in reads:
        before = _highest_before(highest.get(read.client, []), read.invoked_monotonic)
        if read.sequence is not None and read.sequence < before:
            yield f"{read.client} read the task at sequence {read.sequence}, after it had seen {before}"


def _running_highest(events: list[tuple[float, int]]) -> list[tuple[float, int]]:
    running, highest = [], 0
    for moment, sequence in sorted(events):
        highest = max(highest, sequence)
        running.append((moment, highest))
    return running


def _highest_before(running: list[tuple[float, int]], moment: float) -> int:
    """The highest sequence that had been seen at a moment."""
    index = bisect_right(running, moment, key=lambda event: event[0])
    return running[index - 1][1] if index else 0


def _received(stream: Subscription, end: LedgerEntry) -> float | None:
    return next((event.received_monotonic for event in stream.delivered if event.sequence == end.sequence), None)


def _named(stream: Subscription) -> str:
    return f"the stream of {stream.client} after {stream.after_sequence}"


_STREAMS_CHECKS: Final = (
    Check("I24", "streams tell the ledger without gap or repeat", ("subscriptions", "entries"), streams_are_the_ledger),
    Check("I24", "streams end with the task's end", ("subscriptions", "entries"), streams_end_with_the_end),
    Check(
        "I25",
        "ends are told within 2 s",
        ("subscriptions", "entries", "healthy", "unix_minus_monotonic_seconds"),
        ends_are_told_soon,
    ),
    Check("I26", "reads follow what was seen", ("subscriptions", "operations"), reads_follow_what_was_seen),
)


CHECKS: Final = (
    *_SUBMITS_CHECKS,
    *_STREAMS_CHECKS,
)
