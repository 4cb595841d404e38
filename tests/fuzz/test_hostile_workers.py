"""Workers that say what they like on their session streams, while they hold tasks: soon other workers hold them."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.domain.errors import TenureError
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import checkpoint_service_pb2 as ledger_pb
from tenure.v1 import coordinator_service_pb2 as pb
from tests.fuzz.calling import call, check_answer
from tests.fuzz.messages import messages, type_of
from tests.fuzz.methods import method_named
from tests.fuzz.profile import examples
from tests.fuzz.world import World
from tests.support.scripted_worker import ScriptedWorker

pytestmark = [
    pytest.mark.server,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(3600),
    pytest.mark.faults,
]

SESSION = method_named("coordinator-CoordinatorService.Session")
FRAMES = [field.name for field in pb.SessionRequest.DESCRIPTOR.fields if field.name != "hello"]


@examples(25)
@given(data=st.data())
async def test_a_stream_that_begins_as_it_should_may_go_on_as_it_likes(world: World, data: Any) -> None:
    known = await world.known()
    hello = data.draw(messages(pb.Hello.DESCRIPTOR, known))
    frames = data.draw(st.lists(_frames(known), max_size=6))
    sent = [pb.SessionRequest(hello=hello), *frames]
    answer = await call(world.bare["coordinator"], SESSION, sent)
    world.tally.codes[str(SESSION), answer.code.name] += 1
    check_answer(SESSION, sent, answer)
    world.check_processes()


@examples(8)
@given(data=st.data())
async def test_tasks_of_a_hostile_worker_go_to_the_next(world: World, data: Any) -> None:
    """It reserves a model call, says what it likes of it and of its claim, and is gone."""
    queue = f"fuzz-{uuid.uuid4().hex[:8]}"
    address = world.stack.services["coordinator"].address
    worker = ScriptedWorker(address, world.ledger, worker_id="fuzz-hostile", queues=[queue], free_slots=2)
    await worker.attach()
    said: list[pb.SessionRequest] = []
    try:
        task_id = await world.submit(queue)
        grant = await worker.next_grant()
        header = await worker.open(grant)
        reserve = ledger_pb.Reserve(step=1, attempt_number=1, model="sim-plain", input_tokens=10)
        reserve.max_output_tokens = reserve.min_output_tokens = 100
        await worker.commit(grant, header.next_commit_number, reserve=reserve)
        known = {"task_id": st.just(task_id), "claim_id": st.just(grant.claim_id), "worker_id": st.just("fuzz-hostile")}
        said = data.draw(st.lists(_frames(known), min_size=1, max_size=12))
        for frame in said:
            if worker.ended_with is not None:
                break
            await worker.say(frame)
        await _heard(worker)
    finally:
        await worker.break_off()
    world.check_processes()
    await _next_one_succeeds(world, task_id, queue, said)


def _frames(known: Any) -> st.SearchStrategy[pb.SessionRequest]:
    """All kinds as often, and each with something in it."""

    def of_kind(name: str) -> st.SearchStrategy[pb.SessionRequest]:
        kind = type_of(pb.SessionRequest.DESCRIPTOR.fields_by_name[name])
        made: st.SearchStrategy[Any] = messages(kind, known, hostile_in=15)
        return made.map(lambda message: pb.SessionRequest(**{name: message}))

    return st.sampled_from(FRAMES).flatmap(of_kind)


async def _heard(worker: ScriptedWorker) -> None:
    """What was said has arrived: a last word in order is answered by the end of the stream, unless it ended before."""
    if worker.ended_with is None:
        try:
            await worker.close()
            await worker.ends()
        except (TenureError, PeerFailed, asyncio.InvalidStateError):
            return


async def _next_one_succeeds(world: World, task_id: str, queue: str, said: list[pb.SessionRequest]) -> None:
    address = world.stack.services["coordinator"].address
    friend = ScriptedWorker(address, world.ledger, worker_id="fuzz-friend", queues=[queue], free_slots=2)
    await friend.attach()
    try:
        grant = await friend.next_grant()
        assert grant.task_id == task_id
        await friend.succeed(grant)
        ended = await world.ends(task_id)
        assert 0 <= ended.budget.used_tokens <= ended.budget.max_tokens, (ended, said)
        assert ended.budget.reserved_tokens == 0, (ended, said)
    except TimeoutError:
        raise AssertionError(f"no worker gets the task: {await world.task(task_id)}\nafter {said}") from None
    finally:
        await friend.break_off()
