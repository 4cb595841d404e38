"""Leaving a task in good order: the one commit that gives it up."""

from __future__ import annotations

from collections.abc import Sequence

from services.worker.claim_ledger import TRIES, ClaimLedger, Fact
from services.worker.holdings import Holding
from services.worker.parts import Parts
from tenure.domain import entries as facts
from tenure.domain.endings import outcomes_of_ended_calls
from tenure.domain.errors import TryLater
from tenure.domain.states import is_terminal
from tenure.runtime.failpoint import failpoint
from tenure.runtime.retrying import retrying
from tenure.runtime.status import PeerFailed


async def leave(
    parts: Parts, holding: Holding, ledger: ClaimLedger, pending: Sequence[Fact], transition: facts.Transition
) -> None:
    """Writes what is pending and the move. An ending writes an outcome for every open call, and first closes the tools'
    fence: otherwise a delayed call could begin its effect after the end.
    """
    own = list(pending)
    if is_terminal(transition.to_state):
        own += await _outcomes_of_open_calls(parts, holding, ledger, own)
        await failpoint("worker.before_close_out")
    await ledger.leave(own, transition)
    if is_terminal(transition.to_state):
        await failpoint("worker.after_close_out")


async def _outcomes_of_open_calls(
    parts: Parts, holding: Holding, ledger: ClaimLedger, pending: Sequence[Fact]
) -> list[Fact]:
    settled = {body.call_id for _, body in pending if isinstance(body, facts.ToolOutcome)}
    still_open = [intent for intent in ledger.point.open_intents if intent.call_id not in settled]
    if not still_open:
        return []
    standings = await retrying(lambda: parts.tools.fence(holding.token, close=True), TRIES, on=(TryLater, PeerFailed))
    await failpoint("worker.after_fence")
    point = ledger.point
    outcomes = outcomes_of_ended_calls(still_open, standings, point.resolutions, point.tools or ())
    return [(point.step, outcome) for outcome in outcomes]
