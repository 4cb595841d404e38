"""When a task is to start and how long its phases may take, as people type it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import click

from tenure.cli.parameters import DURATION
from tenure.domain.timeouts import Phase, TimeoutAction
from tenure.v1 import task_pb2
from tenure.wire.enums import TIMEOUT_ACTIONS
from tenure.wire.times import duration

_PHASES = {phase.field.replace("_", "-"): phase for phase in Phase}
_ACTIONS = {action.value.lower().replace("_", "-"): action for action in TimeoutAction}


class MomentType(click.ParamType[datetime]):
    """`2026-11-23T07:00`, in the zone of this machine unless it says another: `2026-11-23T07:00+01:00`, `…Z`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(str(value).strip()).astimezone(UTC)
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is no time; write for example 2026-11-23T07:00 or 2026-11-23T07:00Z", param, ctx)


class PhaseTimeoutType(click.ParamType[tuple[str, task_pb2.PhaseTimeout]]):
    """`queued=10m`, `queued=10m:retry`, `tool-call=:fail`."""

    name = "phase=duration:action"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, task_pb2.PhaseTimeout]:
        if isinstance(value, tuple):
            return value
        name, _, told = str(value).partition("=")
        after, _, action = told.partition(":")
        if name not in _PHASES:
            self.fail(f"{name!r} is no phase; there are {', '.join(_PHASES)}", param, ctx)
        if (action and action not in _ACTIONS) or not (after or action):
            self.fail(f"write {name}=DURATION, or {name}=DURATION:ACTION with {', '.join(_ACTIONS)}", param, ctx)
        timeout = task_pb2.PhaseTimeout(after=duration(DURATION.convert(after, param, ctx)) if after else None)
        if action:
            timeout.action = TIMEOUT_ACTIONS.to_wire(_ACTIONS[action])
        return _PHASES[name].field, timeout


MOMENT = MomentType()
PHASE_TIMEOUT = PhaseTimeoutType()


def start_time_of(start_at: datetime | None, start_in: float | None) -> datetime | None:
    """UsageError when both are given; None: at once."""
    if start_at is not None and start_in is not None:
        raise click.UsageError("--start-at and --start-in cannot be given together")
    return start_at if start_in is None else datetime.now(UTC) + timedelta(seconds=start_in)
