"""Checks of effect keys: two calls with one key, of one task or of several, make one effect (I44)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final, NamedTuple

from checker.check import SumCheck, Violation
from checker.checks.tool_calls import resolutions
from checker.history import TaskHistory
from tenure.domain.in_doubt import DidNotHappen
from tenure.domain.tools import EffectClass, OutcomeStatus


class _Made(NamedTuple):
    """A call that made its effect. `by_person`: a person had resolved that it runs."""

    task_id: str
    call_id: str
    round: str
    effect_class: EffectClass
    by_person: bool


class _EffectsOnce:
    """I44. Calls of one round have one idempotency key: only a tool that honours it may make them all."""

    def __init__(self) -> None:
        self._made: defaultdict[tuple[str, str], list[_Made]] = defaultdict(list)

    def add(self, task: TaskHistory) -> None:
        resolved = {
            resolution.call_id for _, resolution in resolutions(task) if isinstance(resolution.decision, DidNotHappen)
        }
        for call in task.calls:
            succeeded = call.outcome is not None and call.outcome.status is OutcomeStatus.SUCCEEDED
            if call.idempotency_key and succeeded:
                effect, period, number = call.idempotency_key.split("-")
                made = _Made(task.task_id, call.call_id, number, call.effect_class, call.call_id in resolved)
                self._made[effect, period].append(made)

    def violations(self) -> Iterator[Violation]:
        for calls in self._made.values():
            first, *others = sorted(calls, key=lambda call: call.by_person)
            for other in others:
                is_repeat = other.round == first.round and other.effect_class.may_run_again
                if not is_repeat and not other.by_person:
                    message = (
                        f"call {other.call_id} made the effect that call {first.call_id} of task {first.task_id} made"
                    )
                    yield Violation("I44", other.task_id, message)


CHECKS: Final = (SumCheck("I44", "an effect with an effect key happens once", ("calls", "entries"), _EffectsOnce),)
