"""Checks of the answers and streams that clients got: acknowledged requests, tenants, reads, watches (I9 to I11, I24 to
I28).
"""

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
from checker.history import LedgerEntry, Method, Operation, OperationResult, Subscription, TaskHistory
from checker.reading import claim, ends, of_kind, own, place
from tenure.domain.entries import CancelRequest, ModelAttempt, OperatorCloseOut, OperatorRequest, Submitted, UserMessage
from tenure.domain.states import TaskState


def acknowledged_requests_are_in_the_ledger(task: TaskHistory) -> Iterator[str]:
    """I9, for submits, cancel requests, resolutions of calls in doubt, and reads."""
    for operation in task.operations:
        if operation.answer is not OperationResult.OK or not task.task_id:
            continue
        if task.row is None:
            yield f"{operation.client} got an answer to {operation.method}, but the task does not exist"
        elif operation.sequence is not None and task.row.sequence < operation.sequence:
            yield f"{operation.client} got sequence {operation.sequence}, but the ledger ends at {task.row.sequence}"
        elif operation.method is Method.CANCEL and not _is_cancelled(task):
            yield f"the cancel request of {operation.client} was acknowledged, but is not in the ledger"
        elif operation.method is Method.RESOLVE and (operation.call_id, operation.call_attempt) not in _resolved(task):
            message = "was acknowledged, but is not in the ledger"
            yield f"the resolution of {operation.client} of call {operation.call_id} {message}"


def acknowledged_commits_are_in_the_ledger(task: TaskHistory) -> Iterator[str]:
    """I9, for commits of loops outside of Tenure's worker: their entries are in order under their claim."""
    kept: defaultdict[tuple[int, str], list[bytes]] = defaultdict(list)
    for entry in task.entries:
        kept[entry.fence].append(entry.body_hash)
    for commit in task.operations:
        if commit.method is not Method.COMMIT or commit.answer is not OperationResult.OK or commit.fence is None:
            continue
        if not _has_run(kept[commit.fence], commit.body_hashes):
            yield (
                f"commit {commit.request_id} of {commit.client} under {claim(commit.fence)} was acknowledged, "
                "but its entries are not in the ledger"
            )


def writes_have_a_request(task: TaskHistory) -> Iterator[str]:
    """I10: submits, cancel requests and resolutions have a client, and entries of outside loops have a commit."""
    operations = [op for op in task.operations if op.answer is not OperationResult.FAILED]
    methods = {op.method for op in operations}
    if task.entries and Method.SUBMIT not in methods and not _may_be_submitted(task):
        yield "no client has submitted the task"
    for entry, _ in of_kind(task.entries, CancelRequest):
        if Method.CANCEL not in methods and not _is_sub_agent(task):
            yield f"{place(entry)} has no cancel request of a client"
    requested = {(op.call_id, op.call_attempt) for op in operations if op.method is Method.RESOLVE}
    for entry, resolution in resolutions(task):
        if (resolution.call_id, resolution.call_attempt) not in requested:
            yield (
                f"{place(entry)} resolves attempt {resolution.call_attempt} of call {resolution.call_id}, "
                "but no client requested it"
            )
    sent = {(op.fence, body) for op in operations if op.method is Method.COMMIT for body in op.body_hashes}
    logged = {fence for fence, _ in sent}
    for entry in task.entries:
        owned = isinstance(entry.body, OWNERS_ONLY) and not isinstance(entry.body, ModelAttempt)
        if owned and entry.fence in logged and (entry.fence, entry.body_hash) not in sent:
            yield f"{place(entry)} is not in any commit of {claim(entry.fence)}"


def requests_have_one_effect(task: TaskHistory) -> Iterator[str]:
    """I11: a repeated request has one effect."""
    first: dict[str, str] = {}
    for entry, message in of_kind(own(task.entries), UserMessage):
        if message.request_id and message.request_id in first:
            yield f"{place(entry)} repeats request {message.request_id} of {first[message.request_id]}"
        first.setdefault(message.request_id, place(entry))
    cancels: dict[int, LedgerEntry] = {}
    for entry in task.entries:
        match entry.body:
            case OperatorRequest(act=OperatorCloseOut()):
                cancels.pop(entry.attempt, None)  # the newest pending ending counts: a cancel may follow a close-out
            case CancelRequest():
                before = cancels.setdefault(entry.attempt, entry)  # each attempt may be cancelled once
                if before is not entry:
                    yield f"{place(entry)} repeats the cancel request {place(before)}"
    for entry, _ in list(of_kind(task.entries, Submitted))[1:]:
        yield f"{place(entry)} submits the task again"


def repeated_commits_get_the_first_answer(task: TaskHistory) -> Iterator[str]:
    """I11: a repeated commit gets the first answer."""
    answers: dict[str, int | None] = {}
    for commit in task.operations:
        if commit.method is not Method.COMMIT or commit.answer is not OperationResult.OK:
            continue
        if answers.setdefault(commit.request_id, commit.sequence) != commit.sequence:
            yield (
                f"commit {commit.request_id} was answered with sequence {answers[commit.request_id]}, "
                f"and again with {commit.sequence}"
            )


def clients_see_their_own_tenant(task: TaskHistory) -> Iterator[str]:
    """I28."""
    for read in task.operations:
        owner = read.seen_tenant or (task.row.tenant if task.row is not None else read.tenant)
        if read.answer is OperationResult.OK and owner != read.tenant:
            yield f"{read.client} of tenant {read.tenant} got a task of tenant {owner}"
    for stream in task.subscriptions:
        if stream.delivered and task.row is not None and task.row.tenant != stream.tenant:
            yield f"{stream.client} of tenant {stream.tenant} got entries of a task of tenant {task.row.tenant}"


class _RequestIds:
    """I27, for the ledger: a request id names one task of its tenant. Keeps a short hash of each request id."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, str] = {}
        self._violations: list[Violation] = []

    def add(self, task: TaskHistory) -> None:
        goal = next(of_kind(task.entries, Submitted), None)
        if goal is None or task.row is None or not goal[1].request_id:
            return
        key = hashlib.blake2b(f"{task.row.tenant}\0{goal[1].request_id}".encode(), digest_size=12).digest()
        other = self._tasks.setdefault(key, task.task_id)
        if other != task.task_id:
            message = f"it has the request id {goal[1].request_id}, as has task {other} of the same tenant"
            self._violations.append(Violation("I27", task.task_id, message))

    def violations(self) -> list[Violation]:
        return self._violations


class _Submits:
    """I27, for answers: a request id gets one task, and another payload with the same id is refused."""

    def __init__(self) -> None:
        self._submits: defaultdict[tuple[str, str], list[Operation]] = defaultdict(list)

    def add(self, task: TaskHistory) -> None:
        for op in task.operations:
            if op.method is Method.SUBMIT and op.request_id:
                self._submits[op.tenant, op.request_id].append(op)

    def violations(self) -> Iterator[Violation]:
        for (_, request_id), submits in self._submits.items():
            accepted = [op for op in submits if op.answer is OperationResult.OK]
            for op in accepted[1:]:
                if op.task_id != accepted[0].task_id:
                    message = f"{op.client} got it for request {request_id}, but {accepted[0].client} got task"
                    yield Violation("I27", op.task_id, f"{message} {accepted[0].task_id}")
                elif op.request_hash != accepted[0].request_hash:
                    message = f"request {request_id} was accepted with two payloads"
                    yield Violation("I27", op.task_id, f"{message}, of {accepted[0].client} and of {op.client}")


def _is_cancelled(task: TaskHistory) -> bool:
    assert task.row is not None
    return task.row.state is TaskState.CANCELLED or any(True for _ in of_kind(task.entries, CancelRequest))


def _resolved(task: TaskHistory) -> set[tuple[str, int]]:
    return {(resolution.call_id, resolution.call_attempt) for _, resolution in resolutions(task)}


def _may_be_submitted(task: TaskHistory) -> bool:
    """Whether a submit without an answer may have created the task: such a submit has only its request id."""
    goal = next(of_kind(task.entries, Submitted), None)
    return goal is None or goal[1].request_id in task.lost_request_ids or _is_sub_agent(task)


def _is_sub_agent(task: TaskHistory) -> bool:
    """Whether a call of a parent created the task. The parent also ends it, without a client's request."""
    return any(goal.spawned_by is not None for _, goal in of_kind(task.entries, Submitted))


def _has_run(kept: list[bytes], wanted: tuple[bytes, ...]) -> bool:
    """Whether `kept` has the wanted hashes in this order."""
    remaining = iter(kept)
    return all(body in remaining for body in wanted)


_SUBMITS_CHECKS: Final = (
    Check(
        "I9",
        "acknowledged requests are in the ledger",
        ("operations", "tasks", "entries"),
        acknowledged_requests_are_in_the_ledger,
    ),
    Check(
        "I9",
        "acknowledged commits are in the ledger",
        ("operations", "entries"),
        acknowledged_commits_are_in_the_ledger,
    ),
    Check("I10", "writes have a request of a client", ("operations", "entries"), writes_have_a_request),
    Check("I11", "repeated requests have one effect", ("entries",), requests_have_one_effect),
    Check("I11", "repeated commits get the first answer", ("operations",), repeated_commits_get_the_first_answer),
    Check("I28", "no client gets another tenant's tasks", ("operations", "tasks"), clients_see_their_own_tenant),
    SumCheck("I27", "a request id names one task", ("tasks", "entries"), _RequestIds),
    SumCheck("I27", "one request gets one task", ("operations",), _Submits),
)


# Streams: watchers get the entries of the ledger in order and without a gap, until the end of the task.

FRESH_SECONDS: Final = 2.0


def streams_have_the_ledgers_entries(task: TaskHistory) -> Iterator[str]:
    """I24."""
    hashes = {entry.sequence: entry.body_hash for entry in task.entries}
    for stream in task.subscriptions:
        expected = stream.after_sequence + 1
        for event in stream.delivered:
            if event.resync:
                expected = max(expected, event.sequence)
            if event.sequence != expected:
                yield f"{_named(stream)} got entry {event.sequence}, but entry {expected} was next"
            if event.sequence not in hashes:
                yield f"{_named(stream)} got entry {event.sequence}, which the ledger does not have"
            elif event.body_hash and event.body_hash != hashes[event.sequence]:
                yield f"{_named(stream)} got another entry {event.sequence} than the ledger's"
            expected = event.sequence + 1


def streams_end_with_the_end(task: TaskHistory) -> Iterator[str]:
    """I24: the last entry of a stream that the server ended is the end of the task."""
    end_entries = {end.sequence: end for end in ends(task.entries)}
    for stream in task.subscriptions:
        sequences = [event.sequence for event in stream.delivered]
        last = max([stream.after_sequence, *sequences])
        if stream.ended and last not in end_entries:
            end = next((end for sequence, end in end_entries.items() if sequence > last), None)
            yield f"{_named(stream)} was ended after entry {last}, " + (
                f"before {place(end)}" if end is not None else "but the task has not ended"
            )


def ends_are_sent_soon(task: TaskHistory) -> Iterator[str]:
    """I25."""
    assert task.unix_minus_monotonic_seconds is not None
    for stream, end in product(task.subscriptions, list(ends(task.entries))):
        received = _received(stream, end)
        if received is None:
            continue
        since = max(end.recorded_at - task.unix_minus_monotonic_seconds, stream.opened_monotonic)
        if received - since > FRESH_SECONDS:
            yield f"{_named(stream)} got {place(end)} {received - since:.1f} s after its commit"


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
            yield f"{read.client} read the task at sequence {read.sequence} after it had seen sequence {before}"


def _running_highest(events: list[tuple[float, int]]) -> list[tuple[float, int]]:
    running, highest = [], 0
    for moment, sequence in sorted(events):
        highest = max(highest, sequence)
        running.append((moment, highest))
    return running


def _highest_before(running: list[tuple[float, int]], moment: float) -> int:
    """Returns the highest sequence that the client had seen at a moment."""
    index = bisect_right(running, moment, key=lambda event: event[0])
    return running[index - 1][1] if index else 0


def _received(stream: Subscription, end: LedgerEntry) -> float | None:
    return next((event.received_monotonic for event in stream.delivered if event.sequence == end.sequence), None)


def _named(stream: Subscription) -> str:
    return f"the stream of {stream.client} after {stream.after_sequence}"


_STREAMS_CHECKS: Final = (
    Check(
        "I24",
        "streams have the entries without gap or repeat",
        ("subscriptions", "entries"),
        streams_have_the_ledgers_entries,
    ),
    Check("I24", "streams end with the task's end", ("subscriptions", "entries"), streams_end_with_the_end),
    Check(
        "I25",
        "ends are sent within 2 s",
        ("subscriptions", "entries", "healthy", "unix_minus_monotonic_seconds"),
        ends_are_sent_soon,
    ),
    Check("I26", "reads are not older than seen entries", ("subscriptions", "operations"), reads_follow_what_was_seen),
)


CHECKS: Final = (
    *_SUBMITS_CHECKS,
    *_STREAMS_CHECKS,
)
