"""The answer to Open: a header, then the history in pages."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import NamedTuple

from tenure.domain.entries import Entry
from tenure.domain.errors import Unavailable
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.entries import entries_to_domain, entry_for_ending


class Opened(NamedTuple):
    """A task as Open left it, with its whole history."""

    task: task_pb2.Task
    next_commit_number: int
    entries: list[Entry]


async def read_opened(parts: AsyncIterable[pb.OpenResponse]) -> Opened:
    """The parts put together. Unavailable when the end of the history is missing, or it is a newer version's."""
    header, entries = await _read_parts(parts)
    return Opened(header.task, header.next_commit_number, read_entries(entries))


async def read_opened_to_end(parts: AsyncIterable[pb.OpenResponse]) -> Opened:
    """As read_opened, with the entries alone that ending the task needs: no other one can hold that up."""
    header, entries = await _read_parts(parts)
    try:
        needed = [read for entry in entries if (read := entry_for_ending(entry)) is not None]
    except ValueError as error:
        raise _unreadable(error) from error
    return Opened(header.task, header.next_commit_number, needed)


async def _read_parts(parts: AsyncIterable[pb.OpenResponse]) -> tuple[pb.OpenHeader, list[ledger_pb2.Entry]]:
    header: pb.OpenHeader | None = None
    entries: list[ledger_pb2.Entry] = []
    async for part in parts:
        if part.HasField("header"):
            header = part.header
        else:
            entries.extend(part.page.entries)
    if header is None or header.task.sequence != (entries[-1].sequence if entries else 0):
        raise Unavailable("the answer to Open was cut off", reason="CUT_OFF")
    return header, entries


def read_entries(entries: Iterable[ledger_pb2.Entry]) -> list[Entry]:
    """Entries as the fold takes them. Unavailable for a kind that a newer version wrote: the task is not at fault, and
    a process of that version can go on with it.
    """
    try:
        return entries_to_domain(entries)
    except ValueError as error:
        raise _unreadable(error) from error


def _unreadable(error: ValueError) -> Unavailable:
    message = f"this version cannot read the task's history, which a newer one may have written: {error}"
    return Unavailable(message, reason="NEWER_LEDGER")
