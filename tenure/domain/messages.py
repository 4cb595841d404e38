"""Words for an agent from outside: who still reads them, and what may not happen before they were read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tenure.domain.errors import TenureError, WrongState
from tenure.domain.states import TERMINAL, TaskState
from tenure.domain.task import offered_function

if TYPE_CHECKING:
    from tenure.domain.endings import Ending

UNREAD_MESSAGES: Final = "UNREAD_MESSAGES"
NO_READER: Final = "NO_READER"
MOST_FACTS: Final = 1000
"""Of others, to one task: their words cost tokens of its budget, and are kept as long as it is."""


def refuse_message(state: TaskState, ending: Ending | None, facts_so_far: int, loop: str = "") -> TenureError | None:
    """Why words to this task would not be read; None: they will be."""
    if state in TERMINAL or ending is not None:
        told = f"the task has ended as {state}" if state in TERMINAL else "the task's end was asked for"
        return WrongState(
            f"{told}: its agent reads no more messages; ForkTask with a message continues it as a new task",
            metadata={"state": state.value},
        )
    if offered_function(loop):
        return WrongState("a function carries this task out, which reads no messages", reason=NO_READER)
    if facts_so_far >= MOST_FACTS:
        return WrongState(f"{MOST_FACTS} messages were sent to this task", reason="MESSAGES_FULL")
    return None


def refuse_unheard_success(to_state: TaskState, ending: Ending | None, unread_sequence: int) -> TenureError | None:
    """No task succeeds past words that its owner has not seen. `unread_sequence`: where they are; 0: there are none.

    Other ends do not wait for words, and one that was asked for comes first.
    """
    if to_state is not TaskState.SUCCEEDED or ending is not None or not unread_sequence:
        return None
    return WrongState(
        f"there is a user's message at {unread_sequence} that was not read: open again and go on",
        reason=UNREAD_MESSAGES,
        metadata={"sequence": str(unread_sequence)},
    )
