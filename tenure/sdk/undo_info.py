"""The effects of a task, and what an undo would do, as dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tenure.domain.undo import UndoVerdict
from tenure.sdk.json_shape import PublicValue


@dataclass(frozen=True, slots=True)
class UndoEffect(PublicValue):
    """An effect of a task: a call of a tool that is not PURE.

    `verdict`: whether it can be undone, and `why` not. `undo_tool` and `undo_arguments`: the call that undoes it.
    `undo_task_id`: the newest undo that has or had it. `declaration_changed`: its tool declares another compensation
    than when the task began; an undo takes the present one. `undo_by_own_tool`: its undo needs a worker with that tool.
    """

    call_id: str
    tool: str
    arguments: Any
    verdict: UndoVerdict
    why: str
    undo_tool: str
    undo_arguments: Any
    undo_task_id: str
    declaration_changed: bool
    undo_by_own_tool: bool


@dataclass(frozen=True, slots=True)
class UndoPlan(PublicValue):
    """What an undo of a task would do. Pass it to `client.undo`, so that nothing else is undone.

    `effects`: the newest first, in the order in which they are undone. `obstacle`: why the task cannot be undone now;
    empty: it can. `declarations_unchecked`: the tool service did not answer, so the declarations are those with which
    the task began.
    """

    effects: tuple[UndoEffect, ...]
    plan_digest: str
    obstacle: str
    declarations_unchecked: bool
