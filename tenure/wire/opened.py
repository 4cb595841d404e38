"""The answer to Open: a header, then the history in pages."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from typing import NamedTuple

from tenure.domain.entries import Entry
from tenure.domain.errors import Unavailable
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.entries import entries_to_domain


class Opened(NamedTuple):
    """A task as Open left it, with its whole history."""

    task: task_pb2.Task
    next_commit_number: int
    entries: list[Entry]


async def read_opened(parts: AsyncIterable[pb.OpenResponse]) -> Opened:
    """The parts put together. Unavailable when the end of the history is missing, or it is a newer version's."""
    header: pb.OpenHeader | None = None
    entries: list[Entry] = []
    async for part in parts:
        if part.HasField("header"):
            header = part.header
        else:
            entries.extend(read_entries(part.page.entries))
    if header is None or header.task.sequence != (entries[-1].sequence if entries else 0):
        raise Unavailable("the answer to Open was cut off", reason="CUT_OFF")
    return Opened(header.task, header.next_commit_number, entries)


def read_entries(entries: Iterable[ledger_pb2.Entry]) -> list[Entry]:
    """Entries as the fold takes them. Unavailable for a kind that a newer version wrote: the task is not at fault, and
    a process of that version can go on with it.
    """
    try:
        return entries_to_domain(entries)
    except ValueError as error:
        raise Unavailable(f"this version is too old for the task: {error}", reason="NEWER_LEDGER") from error
