"""What watchers were told: the ledger as it is, in order, without a gap, to its end."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from typing import Final

from tenure.audit.check import Check
from tenure.audit.history import Answer, LedgerEntry, Method, Subscription
from tenure.audit.reading import ends, place
from tenure.audit.task_history import TaskHistory

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
        told = [event.sequence for event in stream.delivered]
        last = max([stream.after_sequence, *told])
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
    reads = [read for read in task.operations if read.method is Method.GET and read.answer is Answer.OK]
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


CHECKS: Final = (
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
