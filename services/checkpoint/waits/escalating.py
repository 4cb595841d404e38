"""Takes one step of a wait's escalation, under the lock of the task row.

The row has the time of the next step, and the transaction that takes the step plans the one after it. So each step is
taken once, by whichever replica locks the row first.
"""

from __future__ import annotations

from services.checkpoint.commit.close_out import carry_out_ending
from services.checkpoint.commit.draft import LEDGER, Draft
from services.checkpoint.commit.task_row import plan_step
from services.checkpoint.entries import KINDS
from services.checkpoint.waits.waits import RecordedAnswer, record
from tenure.domain.close_out import PendingEnding
from tenure.domain.states import Reason, TaskState
from tenure.domain.waits import NO_ANSWER
from tenure.runtime.store.postgres import Connection
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.task import wait_to_domain


async def take_step(connection: Connection, draft: Draft) -> None:
    """Appends the step, reports it in `changes`, and does what the step says."""
    row = draft.row
    wait = task_pb2.Wait.FromString(row.wait)
    step = task_pb2.EscalationStep()
    step.CopyFrom(wait.next_step)
    wait.steps_taken += 1
    taken = ledger_pb2.WaitEscalated(wait_id=wait.wait_id, step_number=wait.steps_taken, step=step)
    body = ledger_pb2.EntryBody(wait_escalated=taken).SerializeToString()
    draft.append(KINDS["wait_escalated"], body, step=row.step, actor=LEDGER, by_claim=False)
    draft.warnings.append(draft.entries[-1])
    wait.assignee = step.assignee or wait.assignee
    if step.approver and wait.approvers and step.approver not in wait.approvers:
        wait.approvers.append(step.approver)
    draft.escalated, draft.queue, draft.priority = True, step.queue, step.priority
    plan_step(row, wait)
    if step.close_out:
        record(draft, wait_to_domain(wait), RecordedAnswer(NO_ANSWER, LEDGER, ""))
        message = f"no answer came before step {wait.steps_taken} of the wait's escalation"
        draft.request_ending(PendingEnding(TaskState.TIMED_OUT, Reason.CLOSED_BY_ESCALATION, message, LEDGER))
        await carry_out_ending(connection, draft)
