"""Timeouts by phase. What is absent stays absent: defaults belong to the phase, and some to a service's settings."""

from __future__ import annotations

from tenure.domain.timeouts import Phase, PhaseTimeout, Timeouts
from tenure.v1 import task_pb2
from tenure.wire.enums import TIMEOUT_ACTIONS
from tenure.wire.times import duration, seconds


def timeouts_to_domain(message: task_pb2.Timeouts) -> Timeouts:
    return Timeouts(**{field.name: _phase_to_domain(told) for field, told in message.ListFields()})


def timeouts_to_wire(timeouts: Timeouts) -> task_pb2.Timeouts | None:
    """None when nothing is told."""
    if timeouts == Timeouts():
        return None
    told = {phase.field: timeouts.of(phase) for phase in Phase}
    return task_pb2.Timeouts(**{field: _phase_to_wire(one) for field, one in told.items() if one != PhaseTimeout()})


def _phase_to_domain(message: task_pb2.PhaseTimeout) -> PhaseTimeout:
    """An action of a newer peer that is not known here counts as the phase's default."""
    return PhaseTimeout(seconds(message.after) or None, TIMEOUT_ACTIONS.find(message.action))


def _phase_to_wire(timeout: PhaseTimeout) -> task_pb2.PhaseTimeout:
    action = task_pb2.TIMEOUT_ACTION_UNSPECIFIED
    if timeout.action is not None:
        action = TIMEOUT_ACTIONS.to_wire(timeout.action)
    after = None if timeout.after_seconds is None else duration(timeout.after_seconds)
    return task_pb2.PhaseTimeout(after=after, action=action)
