"""Entry kinds, and reading entries: rows to messages, in pages that are bounded by bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from services.checkpoint.queries import QUERIES, fetch_all
from tenure.runtime.store.postgres import Connection
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2
from tenure.wire.common import timestamp

# An entry kind is the field number of EntryBody's oneof, in the database too.

KINDS: Final[dict[str, int]] = {field.name: field.number for field in ledger_pb2.EntryBody.DESCRIPTOR.fields}

WRITTEN_BY_OWNERS: Final = frozenset(
    {
        "tools_defined",
        "model_failure",
        "assistant_message",
        "tool_intent",
        "tool_outcome",
        "user_message",
        "control_step",
        "control_failure",
        "result_rejected",
        "compaction",
    }
)
"""The entry kinds that a commit may have. The ledger itself writes all others, when it does what they record."""

PAGE_BYTES: Final = 900_000
"""The sum of the bodies of a page. With envelopes, a page stays under 1 MiB unless one entry alone is larger."""
PAGE_ENTRIES: Final = 500


def entry_of(columns: Sequence[Any]) -> ledger_pb2.Entry:
    """Returns an entry from (sequence, epoch, claim_id, attempt, step, actor, recorded_at, body)."""
    return add_entry(pb.EntryPage(), columns)


def add_entry(page: pb.EntryPage, columns: Sequence[Any]) -> ledger_pb2.Entry:
    """Appends an entry from the columns of `entry_of` to a page in place: no copy of a large body is made."""
    sequence, epoch, claim_id, attempt, step, actor, recorded_at, body = columns
    entry = page.entries.add(
        sequence=sequence,
        epoch=epoch,
        claim_id=claim_id,
        attempt=attempt,
        step=step,
        actor=actor,
        record_time=timestamp(recorded_at),
    )
    entry.body.MergeFromString(body)
    return entry


async def fill_first_pages(
    connection: Connection,
    pages: Mapping[str, pb.EntryPage],
    afters: Mapping[str, int],
    sequences: Mapping[str, int],
    *,
    page_bytes: int,
) -> None:
    """Fills a page of each task's entries after one sequence up to another, with at least one entry if there is any,
    with one statement.
    """
    task_ids = list(pages)
    parameters = {
        "ords": list(range(len(task_ids))),
        "task_ids": task_ids,
        "afters": [afters[task_id] for task_id in task_ids],
        "untils": [sequences[task_id] for task_id in task_ids],
        "most_entries": PAGE_ENTRIES,
        "most_bytes": page_bytes,
    }
    for place, *columns in await fetch_all(connection, QUERIES.foreign_entries, parameters):
        add_entry(pages[task_ids[place]], columns)


async def fill_page(connection: Connection, page: pb.EntryPage, task_id: str, *, after: int, until: int) -> None:
    """Fills a page with the entries after one sequence up to another, oldest first; at least one if there is any."""
    for columns in await fetch_all(connection, QUERIES.page_of_entries, _bounds(task_id, after, until)):
        add_entry(page, columns)


async def read_page(
    connection: Connection,
    task_id: str,
    *,
    after: int,
    until: int,
    page_size: int = PAGE_ENTRIES,
    page_bytes: int = PAGE_BYTES,
    kinds: Sequence[str] = (),
) -> list[ledger_pb2.Entry]:
    """Returns the entries after one sequence up to another, oldest first; at least one if there is any.

    `kinds`: only those of these kinds; empty: all.
    """
    parameters = _bounds(task_id, after, until, page_size, page_bytes)
    query = QUERIES.page_of_entries
    if kinds:
        query = QUERIES.page_of_kinds
        parameters["kinds"] = [KINDS[kind] for kind in kinds]
    return [entry_of(columns) for columns in await fetch_all(connection, query, parameters)]


def _bounds(
    task_id: str, after: int, until: int, page_size: int = PAGE_ENTRIES, page_bytes: int = PAGE_BYTES
) -> dict[str, Any]:
    return {"task_id": task_id, "after": after, "until": until, "page_size": page_size, "page_bytes": page_bytes}
