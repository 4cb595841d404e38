"""The duty that carries out endings: one that hangs or fails holds up no other."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, cast

import pytest

from services.coordinator.claims.close_out import PendingEndings, transition_of
from services.coordinator.claims.lost_claims import LostClaim, LostClaims
from services.coordinator.claims.queue_watch import InterruptNotices
from services.coordinator.sessions.session import OUTBOX_MESSAGES
from services.coordinator.sessions.session_attach import Sessions
from services.coordinator.settings import CoordinatorSettings
from tenure.runtime.settings import ConfigurationError, load
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2, token_pb2
from tenure.validators import validate
from tenure.wire.common import duration
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.test_coordinator_session import NOW, claim, session

FAILED = task_pb2.TASK_STATE_FAILED


class Due:
    """What is to be ended, each told once, as the ledger's reservations have it."""

    def __init__(self, *task_ids: str) -> None:
        self._left = list(task_ids)

    async def list_endings(self, limit: int, _grace_seconds: float) -> list[pb.ListEndingsResponse.Ending]:
        entry, self._left = self._left[:limit], self._left[limit:]
        return [pb.ListEndingsResponse.Ending(task_id=task_id, tenant="default") for task_id in entry]


class Ender:
    """Hangs, breaks or ends, by the task's name."""

    def __init__(self, expected: int) -> None:
        self.ended: set[str] = set()
        self.all_ended = asyncio.Event()
        self._expected = expected

    async def end(self, ending: pb.ListEndingsResponse.Ending) -> None:
        if ending.task_id.startswith("hang"):
            await asyncio.Event().wait()
        if ending.task_id.startswith("broken"):
            raise ValueError("an entry of a kind that this version does not know")
        self.ended.add(ending.task_id)
        if len(self.ended) == self._expected:
            self.all_ended.set()


class Requeues:
    """The ledger, as far as lost claims need it: keeps the requests."""

    def __init__(self) -> None:
        self.lost: list[pb.RequeueLostRequest.Lost] = []

    async def requeue(self, lost: Any) -> list[str]:
        self.lost += lost
        return []


async def test_a_lost_claim_has_a_message_that_an_ending_can_have() -> None:
    ledger = Requeues()
    claims = LostClaims(cast("Any", None), cast("Any", ledger))
    await claims.requeue([LostClaim("t", "c", "CLAIM_LOST", "x" * 5000)])
    ending = pb.ListEndingsResponse.Ending(to_state=FAILED, reason="CLAIM_LOST", message=ledger.lost[0].message)
    as_it_is = pb.Transition(to_state=FAILED, reason=ending.reason, message=ending.message)
    validate(commit_of(as_it_is))


def test_a_close_out_has_a_message_that_the_ledger_accepts() -> None:
    ending = pb.ListEndingsResponse.Ending(to_state=FAILED, reason="CLAIM_LOST", message="x" * 5000)
    validate(commit_of(transition_of(ending, "the result")))


def commit_of(transition: pb.Transition) -> pb.CommitRequest:
    token = token_pb2.FencingToken(claims=b"c", signature=b"s", key_id="k")
    return pb.CommitRequest(token=token, commit_id=str(uuid.uuid4()), commit_number=1, transition=transition)


async def test_an_ending_that_hangs_or_breaks_holds_up_no_other() -> None:
    good = [f"good{number}" for number in range(60)]
    hanging = [f"hang{number}" for number in range(12)]
    due, ender = Due("broken", *hanging, *good), Ender(len(good))
    endings = PendingEndings(cast("Any", due), Sessions(), cast("Any", ender), grace_seconds=1.0)
    duty = asyncio.create_task(endings.run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ender.all_ended.wait()
        assert not duty.done()
    finally:
        duty.cancel()
        await asyncio.gather(duty, return_exceptions=True)
    assert ender.ended == set(good)


async def test_many_cancels_at_once_end_no_stream() -> None:
    """The messages came faster than the stream could send them, and so the healthy worker lost its stream."""
    sessions, worker = Sessions(), session()
    task_ids = []
    for number in range(OUTBOX_MESSAGES + 10):
        held = claim(number)
        worker.hold(held, NOW, named=True)
        task_ids.append(held.task_id)
    sessions.attach(worker)
    PendingEndings(cast("Any", Due()), sessions, cast("Any", Ender(0)), grace_seconds=1.0).on_cancels(task_ids)
    assert (await worker.next_response()).HasField("cancel")
    assert not worker.ended.is_set()


async def test_notices_of_messages_end_no_stream() -> None:
    sessions, owner = Sessions(), session()
    held = [claim(number) for number in range(OUTBOX_MESSAGES + 10)]
    for each in held:
        owner.hold(each, NOW, named=True)
    sessions.attach(owner)
    notices = InterruptNotices(sessions)
    notices.send([], to_all=True)
    notices.send([each.task_id for each in held], to_all=False)
    assert not owner.ended.is_set()
    async with asyncio.timeout(PATIENCE_SECONDS):
        responses = [await owner.next_response() for _ in range(2)]
    assert [each.interrupt.task_id for each in responses] == ["", held[0].task_id]


def test_the_longest_grace_is_one_that_the_ledger_accepts() -> None:
    """With a longer one, no coordinator could list any pending ending, and none was carried out."""
    name = "TENURE_COORDINATOR_CANCEL_GRACE_SECONDS"
    files = {"TENURE_COORDINATOR_SIGNING_KEY_FILE": "s", "TENURE_COORDINATOR_VERIFYING_KEYS_FILE": "v"}
    longest = load(CoordinatorSettings, {**files, name: "60"}, prefix="TENURE_COORDINATOR_").cancel_grace_seconds
    validate(pb.ListEndingsRequest(limit=1, grace=duration(longest)))
    with pytest.raises(ConfigurationError, match=name):
        load(CoordinatorSettings, {**files, name: "61"}, prefix="TENURE_COORDINATOR_")
