"""Outputs of tasks: a row from the intent of record_output on, filled in by the call's outcome and by the close-out.

All writes are in the transaction that commits the intent, the outcome or the transition, under the task row's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from services.checkpoint.commit.draft import LEDGER
from services.checkpoint.queries import OUTPUTS, fetch_one
from services.checkpoint.waits.waits import close_call
from tenure.domain.outputs import MAX_OUTPUTS
from tenure.domain.tools import Outcome, OutcomeStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.checkpoint.commit.draft import Draft
    from tenure.domain.entries import ToolIntent
    from tenure.runtime.store.postgres import Connection
    from tenure.v1 import tool_pb2

_TOO_MANY: Final = Outcome(
    OutcomeStatus.FAILED, f"The output was not recorded: a task makes at most {MAX_OUTPUTS} calls of this tool."
)


async def open_output(connection: Connection, draft: Draft, call: ToolIntent) -> None:
    """Adds the row of a call of record_output, or closes the call when the task has too many."""
    parameters = {"task_id": draft.row.task_id, "call_id": call.call_id, "most": MAX_OUTPUTS}
    if await fetch_one(connection, OUTPUTS.open_output, parameters) is None:
        close_call(draft, call.call_id, _TOO_MANY, LEDGER)


async def write_outputs(connection: Connection, draft: Draft, outputs: Iterable[tool_pb2.TaskOutput]) -> None:
    """Fills in the rows of these outputs. Ignores outputs of other calls, for example those that a fork copied."""
    by_call = {output.call_id: output for output in outputs}
    if by_call:
        listed = list(by_call.values())
        parameters = {
            "task_id": draft.row.task_id,
            "call_ids": [output.call_id for output in listed],
            "kinds": [output.kind for output in listed],
            "uris": [output.uri for output in listed],
            "bodies": [output.SerializeToString(deterministic=True) for output in listed],
        }
        await connection.execute(OUTPUTS.write_outputs, parameters)
