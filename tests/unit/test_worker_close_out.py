"""How a worker leaves a task: what it writes of the calls that are open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from services.worker.held_claims import HeldTask
from services.worker.transitions import close_out
from tenure.domain import entries as facts
from tenure.domain.fencing import Claims
from tenure.domain.fold import ResumePoint
from tenure.domain.in_doubt import Decision, DidNotHappen, Happened, Resolution, ResolvedCall
from tenure.domain.states import Reason, TaskState
from tenure.domain.tools import CallState, CallStatus, OutcomeStatus
from tenure.v1 import token_pb2


class Tools:
    """One call, in doubt at its first attempt."""

    async def fence(
        self, _token: token_pb2.FencingToken, *, close: bool, resolved: list[ResolvedCall]
    ) -> dict[str, CallStatus]:
        assert close
        assert [one.call_id for one in resolved] == ["1.0"]
        return {"1.0": CallStatus(CallState.IN_DOUBT, None, 1)}


class Ledger:
    """Opened after a person gave this word, which is not at the tools yet."""

    def __init__(self, decision: Decision) -> None:
        intent = facts.ToolIntent("1.0", "use-1", "pay", "{}")
        self.point = ResumePoint(intents={"1.0": intent}, open_calls={"1.0": intent})
        self.point.resolutions["1.0"] = Resolution(1, decision, "I looked", "olga")
        self.left: list[Any] = []

    async def close_out(self, own: list[Any], _transition: facts.Transition) -> None:
        self.left += own


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (Happened("paid"), (OutcomeStatus.SUCCEEDED, "paid")),
        (DidNotHappen(runner_is_gone=True), (OutcomeStatus.IN_DOUBT, "It is not known")),
    ],
)
async def test_a_close_out_writes_pending_resolutions(decision: Decision, expected: tuple[OutcomeStatus, str]) -> None:
    held = HeldTask(Claims("tasks/t1", "default", 7, "c1", "w1"), token_pb2.FencingToken(), "messages")
    ledger, parts = Ledger(decision), cast("Any", SimpleNamespace(tools=Tools()))
    ending = facts.Transition(TaskState.CANCELLED, Reason.CANCEL_REQUESTED)
    await close_out(parts, held, cast("Any", ledger), [], ending)
    ((_, body),) = ledger.left
    assert (body.call_id, body.outcome.status) == ("1.0", expected[0])
    assert body.outcome.content.startswith(expected[1])
