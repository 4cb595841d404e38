"""Checks of the chain of receipts (I42). It has its own writer of the text of docs/receipts.md."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from checker.check import Check
from checker.history import CallRecord, TaskHistory
from tenure.domain.states import TERMINAL
from tenure.domain.tools import CallState

_UNDER_WAY: Final = frozenset({CallState.ACCEPTED, CallState.STARTED, CallState.IN_DOUBT})
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def receipts_follow_from_call_records(task: TaskHistory) -> Iterator[str]:
    """I42. A gap may be the receipt of a call that was read before its outcome."""
    with_receipt = sorted((call for call in task.calls if call.receipt_number), key=lambda call: call.receipt_number)
    link = bytes(32)
    tenant = task.row.tenant if task.row is not None else ""
    for number, call in enumerate(with_receipt, 1):
        if call.receipt_number != number:
            if not _is_under_way(task):
                yield f"receipt {number} is missing: call {call.call_id} has receipt {call.receipt_number}"
            return
        link = hashlib.sha256(_text(call, tenant, link).encode()).digest()
        if link != call.receipt_link:
            yield f"the record of call {call.call_id} is not the one that its receipt {number} was made of"
            return
    has_ended = task.row is not None and task.row.state in TERMINAL and not _is_under_way(task)
    of_records = (len(with_receipt), link)
    if task.fence is not None and has_ended and (task.fence.receipts, task.fence.receipt_head) != of_records:
        yield f"the fence has {task.fence.receipts} receipts; the call records have {len(with_receipt)} or another link"


def _is_under_way(task: TaskHistory) -> bool:
    return any(call.state in _UNDER_WAY for call in task.calls)


def _text(call: CallRecord, tenant: str, previous: bytes) -> str:
    fields = {
        "v": 1,
        "task": call.task_id,
        "tenant": tenant,
        "call": call.call_id,
        "tool": call.tool,
        "effect_class": call.effect_class.value,
        "arguments_sha256": call.arguments_hash.hex(),
        "call_attempt": call.call_attempt,
        "epoch": str(call.epoch),
        "claim": call.claim_id,
        "accept_time": _time(call.accepted_at),
        "start_time": _time(call.started_at),
        "finish_time": _time(call.finished_at),
        "outcome_message_sha256": call.outcome_message_hash.hex(),
        "number": call.receipt_number,
        "previous": previous.hex(),
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def _time(unix: float | None) -> str:
    """Returns the time of Unix seconds, which are exact to the microsecond."""
    if unix is None:
        return ""
    moment = _EPOCH + timedelta(microseconds=round(unix * 1e6))
    return f"{moment:%Y-%m-%dT%H:%M:%S.%f}Z"


CHECKS: Final[tuple[Check, ...]] = (
    Check(
        "I42",
        "receipts are those of the call records",
        ("calls", "fences", "tasks"),
        receipts_follow_from_call_records,
    ),
)
