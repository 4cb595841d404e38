"""Requests to CheckpointService: entries in commits within the ledger's limits, and reports of usage.

Entries are split, so that many outcomes cannot prevent a close-out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from tenure.runtime.usage_reports import UsageReport
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.wire.task import usage_to_wire

MAX_ENTRIES: Final = 256
MAX_BYTES: Final = 900_000
"""Below the ledger's limit of 1 MiB, which counts the whole commit."""

REPORT_TIMEOUT_SECONDS: Final = 60.0

Item = TypeVar("Item")


def is_one_portion(items: Sequence[Item], size: Callable[[Item], int]) -> bool:
    """Whether all items fit into one commit, for items that must be committed together."""
    return len(items) <= MAX_ENTRIES and sum(map(size, items)) <= MAX_BYTES


def portions(items: Sequence[Item], size: Callable[[Item], int], *, last_bytes: int = 0) -> list[list[Item]]:
    """Splits the items, in order, into at least one portion. The last portion has room for `last_bytes` more.

    The last portion can be empty to have that room. A single item and `last_bytes` always fit, because their own
    limits are lower.
    """
    made: list[list[Item]] = []
    current: list[Item] = []
    used = 0
    for item in items:
        item_bytes = size(item)
        if current and (len(current) == MAX_ENTRIES or used + item_bytes > MAX_BYTES):
            made.append(current)
            current, used = [], 0
        current.append(item)
        used += item_bytes
    made.append(current)
    if current and used + last_bytes > MAX_BYTES:
        made.append([])
    return made


def usage_report_to_wire(report: UsageReport) -> pb.ReportUsageRequest:
    return pb.ReportUsageRequest(
        token=report.token,
        step=report.call.step,
        attempt_number=report.call.attempt_number,
        usage=usage_to_wire(report.call.usage),
        provider_request_id=report.provider_request_id,
    )
