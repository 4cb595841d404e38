"""Checks of effect keys: two calls with one key, of one task or of several, make one effect (I44)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from checker.check import SumCheck, Violation
from checker.checks.tool_calls import resolutions
from checker.checks.undos import undone_calls
from checker.history import CallRecord, TaskHistory
from tenure.domain.in_doubt import DidNotHappen
from tenure.domain.tools import CallState, EffectClass, OutcomeStatus


def _may_have_happened(call: CallRecord) -> bool:
    """Whether the call made its effect, or began and its record does not prove that it did not."""
    if call.outcome is None:
        return call.state in {CallState.STARTED, CallState.IN_DOUBT}
    has_run = call.started_at is not None or call.outcome.status is OutcomeStatus.SUCCEEDED
    return has_run and not call.outcome.no_effect


class _Made(NamedTuple):
    """A call that made its effect, or may have made it."""

    task_id: str
    call_id: str
    round: str
    effect_class: EffectClass

    @property
    def effect(self) -> object:
        """Calls of one round have one idempotency key: a tool that honours it makes one effect of them."""
        return self.round if self.effect_class.may_run_again else (self.task_id, self.call_id)


@dataclass
class _EffectInPeriod:
    """`permitted`: how often a person resolved that a call with the key runs, whatever had happened."""

    made: list[_Made] = field(default_factory=list)
    permitted: int = 0

    def too_many(self, undone: set[str]) -> Iterator[tuple[_Made, _Made]]:
        """Yields each call beyond those that may make the effect, with the first call. `undone`: the undone calls."""
        taken_back = {call.effect for call in self.made if f"{call.task_id}/{call.call_id}" in undone}
        effects: dict[object, _Made] = {}
        for call in self.made:
            if call.effect not in taken_back:
                effects.setdefault(call.effect, call)
        calls = list(effects.values())
        for call in calls[1 + self.permitted :]:
            yield call, calls[0]


class _EffectsOnce:
    """I44. An effect that was undone may be made again."""

    def __init__(self) -> None:
        self._undone: set[str] = set()
        self._effects: defaultdict[tuple[str, str], _EffectInPeriod] = defaultdict(_EffectInPeriod)

    def add(self, task: TaskHistory) -> None:
        resolved = {
            resolution.call_id for _, resolution in resolutions(task) if isinstance(resolution.decision, DidNotHappen)
        }
        self._undone.update(undone_calls(task))
        for call in task.calls:
            if not call.has_effect_key:
                continue
            digest, period, number = call.idempotency_key.split("-")
            effect = self._effects[digest, period]
            effect.permitted += call.call_id in resolved
            if _may_have_happened(call):
                effect.made.append(_Made(task.task_id, call.call_id, number, call.effect_class))

    def violations(self) -> Iterator[Violation]:
        for effect in self._effects.values():
            for call, first in effect.too_many(self._undone):
                message = f"call {call.call_id} made the effect that call {first.call_id} of task {first.task_id} made"
                yield Violation("I44", call.task_id, message)


CHECKS: Final = (SumCheck("I44", "an effect with an effect key happens once", ("calls", "entries"), _EffectsOnce),)
