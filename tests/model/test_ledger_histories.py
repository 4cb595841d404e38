"""Any sequence of what workers, coordinators and people may do leaves a ledger that is whole and says what happened.

Hypothesis makes the sequences up; the real service on a real Postgres carries them out. Refusals are part of the game.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.domain.errors import TenureError
from tenure.domain.fold import fold
from tenure.domain.states import MOVES, TERMINAL, TaskState
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.wire.common import STATES
from tenure.wire.ledger import entries_to_domain
from tests.support.examples import examples
from tests.support.fix_checkpoint import (
    MakeCheckpointProcess,
    answer,
    entry,
    reserve,
    words,
)

TERMINAL_NUMBERS = [STATES.to_wire(state) for state in TERMINAL]
CAP = 2_000


class World:
    """One task, all its owners, and what each of them may try next."""

    def __init__(self, replica: Any, task_id: Any) -> None:
        self.replica, self.task_id = replica, task_id
        self.owners: list[Any] = []
        self.step, self.calls = 0, 0

    async def claim(self, _rng: Any) -> None:
        self.owners.append(await self.replica.claim(self.task_id))

    async def claim_to_join(self, _rng: Any) -> None:
        self.owners.append(await self.replica.claim(self.task_id, joins=True))

    async def requeue(self, rng: Any) -> None:
        await self.replica.requeue(self.pick(rng), output_tokens=rng % 50)

    async def cancel(self, rng: Any) -> None:
        await self.replica.cancel(self.task_id, f"c-{rng % 3}")

    async def say(self, rng: Any) -> None:
        await self.replica.say(self.task_id, "words", f"m-{rng % 5}")

    async def note(self, rng: Any) -> None:
        await self.pick(rng).commit(words(step=self.step))

    async def reserve(self, rng: Any) -> None:
        self.step += 1
        await self.pick(rng).commit(reserve=reserve(step=self.step, input_tokens=rng % 300, output=100))

    async def reserve_outliving(self, rng: Any) -> None:
        self.step += 1
        wanted = reserve(step=self.step, input_tokens=rng % 300, output=100, outlives=True)
        await self.pick(rng).commit(reserve=wanted)

    async def answer(self, rng: Any) -> None:
        await self.pick(rng).commit(answer(step=self.step, tokens=rng % 120), intent(f"{self.step}.0", self.step))

    async def outcome(self, rng: Any) -> None:
        await self.pick(rng).commit(outcome(f"{self.step}.0", self.step))

    async def repeat(self, rng: Any) -> None:
        owner = self.pick(rng)
        request = owner.request(words())
        first = await owner.send(request)
        assert await owner.send(request) == first

    async def park(self, rng: Any) -> None:
        transition = pb.Transition(to_state=[3, 4, 5][rng % 3], reason="WAITS")
        if transition.to_state == task_pb2.TASK_STATE_RETRY_SCHEDULED:
            transition.retry_delay.FromMilliseconds(rng % 20)
        await self.pick(rng).commit(transition=transition)

    async def give_back(self, rng: Any) -> None:
        transition = pb.Transition(to_state=task_pb2.TASK_STATE_QUEUED, reason="WORKER_DRAINED")
        await self.pick(rng).commit(transition=transition)

    async def end(self, rng: Any) -> None:
        await self.pick(rng).end(TERMINAL_NUMBERS[rng % 5])

    def pick(self, rng: Any) -> Any:
        """Mostly the newest owner, now and then one of before."""
        return self.owners[-1 if rng % 4 else rng % len(self.owners)]


ACTIONS = [name for name in vars(World) if not name.startswith("_") and name != "pick"]


def intent(call_id: Any, step: Any) -> Any:
    return entry(step, tool_intent=ledger_pb2.ToolIntent(call_id=call_id, tool="t", arguments_json="{}"))


def outcome(call_id: Any, step: Any) -> Any:
    result = tool_pb2.Outcome(status=tool_pb2.OUTCOME_STATUS_SUCCEEDED, content="ok")
    return entry(step, tool_outcome=ledger_pb2.ToolOutcome(call_id=call_id, outcome=result))


histories = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 10_000)), min_size=3, max_size=25)


@pytest.mark.fuzz
async def test_every_history_leaves_a_whole_ledger(checkpoint_process: MakeCheckpointProcess) -> None:
    # A process of its own: hypothesis minds random numbers drawn beside it, such as a sweep's.
    replica = (await checkpoint_process()).replica
    loop = asyncio.get_running_loop()

    @settings(max_examples=examples(15), deadline=None, suppress_health_check=list(HealthCheck))
    @given(histories)
    def check(actions: Any) -> None:
        asyncio.run_coroutine_threadsafe(play(replica, actions), loop).result(60)

    await asyncio.to_thread(check)


async def play(replica: Any, actions: Any) -> None:
    limits = task_pb2.Limits(max_tokens=CAP)
    task = await replica.create(f"history-{uuid4()}", limits=limits)
    world = World(replica, task.task_id)
    await world.claim(0)
    for name, rng in actions:
        with suppress(TenureError):
            await getattr(world, name)(rng)
    await check_ledger(replica, task.task_id)


async def read_unmoved(replica: Any, task_id: Any) -> tuple[Any, Any]:
    """The task and its entries of one moment: a timer, such as a retry's, may append an entry between two reads."""
    while True:
        task, entries = await replica.get(task_id), await replica.entries(task_id)
        if len(entries) == task.sequence:
            return task, entries


async def check_ledger(replica: Any, task_id: Any) -> None:
    task, entries = await read_unmoved(replica, task_id)
    assert [one.sequence for one in entries] == list(range(1, len(entries) + 1))
    assert all(later.record_time.ToNanoseconds() >= one.record_time.ToNanoseconds() for one, later in pairwise(entries))
    check_moves(entries)
    check_epochs(entries)
    point = fold(entries_to_domain(entries))
    assert point.sequence == task.sequence
    assert STATES.to_wire(point.state) == task.state
    check_bills(entries, task, await replica.query(USAGE, task_id), await replica.query(OPEN, task_id))
    if point.state in TERMINAL:
        assert not point.open_intents


USAGE = (
    "select count(*), coalesce(sum(input_tokens + output_tokens), 0)::bigint from ledger.token_usage where task_id = %s"
)
OPEN = (
    "select (model_input + model_output) * model_open::int, model_open, model_outlives from ledger.tasks "
    "where task_id = %s"
)


def check_moves(entries: Any) -> None:
    """Each transition begins where the one before ended, and is in the table."""
    moves = [one.body.transition for one in entries if one.body.WhichOneof("body") == "transition"]
    for one, later in pairwise(moves):
        assert later.from_state == one.to_state
        assert STATES.to_domain(later.to_state) in MOVES[STATES.to_domain(later.from_state)]
    ends = [move for move in moves if STATES.to_domain(move.to_state) in TERMINAL]
    assert len(ends) <= 1
    if ends:
        assert entries[-1].body.transition == ends[0]


def check_epochs(entries: Any) -> None:
    """Facts under claims never go back to an older claim."""
    epochs = [one.epoch for one in entries if one.epoch]
    assert epochs == sorted(epochs)
    assert len({(one.epoch, one.claim_id) for one in entries if one.epoch}) == len(set(epochs))


def check_bills(entries: Any, task: Any, usage: Any, held: Any) -> None:
    """Every attempt is billed once when it is settled; what is set aside is what is open."""
    ((bills, billed),) = usage
    ((reserved, is_open, outlives),) = held
    kinds = [one.body.WhichOneof("body") for one in entries]
    settled = sum(kinds.count(kind) for kind in ("assistant_message", "model_failure", "attempt_lost"))
    assert bills == settled == kinds.count("model_attempt") - is_open
    assert task.budget.used_tokens == billed
    assert task.budget.reserved_tokens == reserved
    allowed = {TaskState.RUNNING, TaskState.QUEUED} if outlives else {TaskState.RUNNING}
    assert STATES.to_domain(task.state) in allowed or not is_open
    assert is_open or not outlives
