"""How long phases of a task may be asked to take, and when one may be asked to start."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.task import MAX_START_DELAY_SECONDS
from tenure.domain.timeouts import ACTIONS, MIN_TIMEOUT_SECONDS, NEED_DURATION, Phase, longest_seconds
from tenure.v1 import task_pb2
from tenure.validators.violations import Violations
from tenure.wire.enums import TIMEOUT_ACTIONS
from tenure.wire.times import seconds

_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC).timestamp()


def check_timeouts(timeouts: task_pb2.Timeouts, v: Violations, field: str) -> None:
    for told, timeout in timeouts.ListFields():
        _phase(Phase(told.name.upper()), timeout, v, f"{field}.{told.name}")


def _phase(phase: Phase, timeout: task_pb2.PhaseTimeout, v: Violations, field: str) -> None:
    after_seconds = seconds(timeout.after)
    if phase is Phase.TASK:
        v.require(not after_seconds, f"{field}.after", "limits.timeout says how long a task may take")
    elif after_seconds:
        v.between(f"{field}.after", after_seconds, MIN_TIMEOUT_SECONDS, longest_seconds(phase))
    elif phase in NEED_DURATION:
        v.require(not timeout.action, f"{field}.after", "must be set: without it this phase is not timed")
    if timeout.action:
        names = ", ".join(sorted(ACTIONS[phase]))
        v.require(TIMEOUT_ACTIONS.find(timeout.action) in ACTIONS[phase], f"{field}.action", f"must be one of {names}")


def check_start_time(start_time: Timestamp, v: Violations, field: str) -> None:
    """By the clock of whoever checks: the bound is far, and only there so that no task is forgotten in a far future."""
    whole = 0 <= start_time.nanos < 1_000_000_000
    latest = datetime.now(UTC).timestamp() + MAX_START_DELAY_SECONDS
    days = MAX_START_DELAY_SECONDS / 86_400
    v.require(whole and _FIRST <= start_time.seconds <= latest, field, f"must be at most {days:g} days ahead")
