"""What became of an attempt, written down under the fence of the turn that made it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.checkpoint.queries import fetch_one, in_ledger_transaction
from services.checkpoint.webhooks.rows import WEBHOOKS
from tenure.domain.webhooks import Answer, DeliveryState, PauseCode, Verdict

if TYPE_CHECKING:
    from services.checkpoint.webhooks.reading import Place
    from services.checkpoint.webhooks.sending import Letter
    from tenure.runtime.postgres import Connection, Pool


async def record(pool: Pool, place: Place, letter: Letter, answer: Answer, verdict: Verdict, most_dead: int) -> None:
    """Nothing, when another turn began meanwhile: that one sends it again."""

    async def work(connection: Connection) -> None:
        if verdict.state is DeliveryState.DELIVERED:
            written = await fetch_one(connection, WEBHOOKS.count_received, place.key) is not None
        else:
            written = await _count_failure(connection, place, answer, verdict, most_dead)
        if written:
            await _write(connection, place, letter, answer, verdict)

    await in_ledger_transaction(pool, work)


async def _count_failure(
    connection: Connection, place: Place, answer: Answer, verdict: Verdict, most_dead: int
) -> bool:
    parameters = {
        **place.key,
        "died": int(verdict.state is DeliveryState.DEAD),
        "problem": answer.problem,
        "hold_seconds": float(verdict.hold_seconds),
    }
    counted = await fetch_one(connection, WEBHOOKS.count_failed, parameters)
    if counted is None:
        return False
    if verdict.pause_code:
        await _pause(connection, place, verdict.pause_code, "the endpoint answered 410 Gone: it wants nothing more")
    elif verdict.state is DeliveryState.DEAD and counted[0] >= most_dead:
        await _pause(connection, place, PauseCode.DEAD_LETTERS_FULL, f"there are {counted[0]:,} dead letters")
    return True


async def _write(connection: Connection, place: Place, letter: Letter, answer: Answer, verdict: Verdict) -> None:
    parameters: dict[str, Any] = {
        "webhook_id": place.webhook_id,
        "ordinal": letter.ordinal,
        "status": answer.status,
        "error": answer.problem,
    }
    if verdict.state is DeliveryState.PENDING:
        parameters["wait_seconds"] = float(verdict.wait_seconds)
        await connection.execute(WEBHOOKS.put_off_delivery, parameters)
        return
    ended = await fetch_one(connection, WEBHOOKS.end_delivery, {**parameters, "state": verdict.state.value})
    assert ended is not None, "a pending delivery goes with its webhook only, whose row is locked"
    await connection.execute(WEBHOOKS.advance_line, {"webhook_id": place.webhook_id, "line": ended[0]})


async def _pause(connection: Connection, place: Place, code: str, reason: str) -> None:
    parameters = {"webhook_id": place.webhook_id, "code": code, "reason": reason, "actor": "checkpoint"}
    await connection.execute(WEBHOOKS.pause, parameters)
