"""The acts on many tasks: in which states each has an effect, and which tasks are already where it would bring them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tenure.domain.states import TERMINAL, WITHOUT_SUCCESS, Reason, TaskState


@dataclass(frozen=True, slots=True)
class Act:
    """`states`, `reasons`: of the tasks that the act can change; no reasons: any.

    `brings_to`, `brings_reason`: the states after it, and their reason; "": any.
    """

    states: frozenset[TaskState]
    brings_to: frozenset[TaskState]
    reasons: frozenset[str] = frozenset()
    brings_reason: str = ""

    def is_done(self, state: TaskState, reason: str) -> bool:
        """Whether a task that refuses the act is already where the act would bring it."""
        return state in self.brings_to and self.brings_reason in {"", reason}


ACTS: Final[Mapping[str, Act]] = {
    "cancel": Act(frozenset(TaskState) - TERMINAL, frozenset({TaskState.CANCELLED})),
    "requeue": Act(WITHOUT_SUCCESS | {TaskState.RETRY_SCHEDULED}, frozenset({TaskState.QUEUED, TaskState.RUNNING})),
    "begin_wait": Act(
        frozenset({TaskState.QUEUED, TaskState.RUNNING, TaskState.RETRY_SCHEDULED}),
        frozenset({TaskState.WAITING_USER}),
        brings_reason=Reason.OPERATOR_WAIT,
    ),
    "end_wait": Act(
        frozenset({TaskState.WAITING_USER}),
        frozenset({TaskState.QUEUED, TaskState.RUNNING}),
        reasons=frozenset({Reason.OPERATOR_WAIT}),
    ),
}
"""By the name of the act in ActOnTasksRequest."""
