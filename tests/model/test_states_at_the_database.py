"""The database holds the same moves as the domain, for each writer: the service, and SQL by hand under its role.

Hypothesis makes up sequences of both. The expectation is the domain's rules; after each step the row, the entries and
the rules say the same, and what was refused has left no trace. TENURE_EXAMPLES plays more, as `make faults` does.
"""

from __future__ import annotations

import asyncio
import itertools
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from services.checkpoint.queries import MIGRATIONS
from tenure.domain.close_out import PendingEnding
from tenure.domain.errors import TenureError, WrongState
from tenure.domain.fencing import Fence
from tenure.domain.states import MOVES, TERMINAL, WAITING, TaskState, check_transition
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2
from tenure.wire.common import STATES
from tests.model.expected_task import NOBODY, Expected
from tests.model.hand_written import OF_ANY_TASK, OF_ENDED_TASKS, OF_OTHER_TABLES, OF_TASKS_THAT_NOBODY_HOLDS
from tests.model.states_world import open_world, service_role
from tests.support.examples import examples
from tests.support.fix_checkpoint import entry, words
from tests.support.fix_postgres import FreshDatabase

pytestmark = [pytest.mark.server, pytest.mark.fuzz]
HISTORIES = examples(6)
SETTINGS = settings(
    max_examples=HISTORIES,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.reuse, Phase.generate),  # histories are short as they are; making one shorter takes minutes
)
PARKED = (TaskState.WAITING_USER, TaskState.WAITING_EXTERNAL, TaskState.RETRY_SCHEDULED)
ENDS = sorted(TERMINAL)
WAYS = {
    TaskState.QUEUED: [TaskState.QUEUED],
    TaskState.RUNNING: [TaskState.QUEUED, TaskState.RUNNING],
    **{state: [TaskState.QUEUED, TaskState.RUNNING, state] for state in (*PARKED, *ENDS)},
}
"""How a new task gets there."""
CLOSED_OUT = (TaskState.FAILED, TaskState.TIMED_OUT, TaskState.CANCELLED)
REFUSED = (psycopg.errors.IntegrityError, psycopg.errors.InsufficientPrivilege)


async def test_the_database_and_the_domain_allow_the_same(fresh_database: FreshDatabase, signing_keys: Path) -> None:
    loop = asyncio.get_running_loop()
    async with (
        service_role(await fresh_database(MIGRATIONS)) as dsn,
        open_world(dsn, signing_keys) as world,
    ):
        await asyncio.to_thread(run_state_machine_as_test, cast("Any", lambda: OneTask(world, loop)), settings=SETTINGS)


async def test_the_database_allows_exactly_the_moves_of_the_table(
    fresh_database: FreshDatabase, signing_keys: Path
) -> None:
    async with service_role(await fresh_database(MIGRATIONS)) as dsn, open_world(dsn, signing_keys) as world:
        for current, to in itertools.product(TaskState, TaskState):
            if current is to:
                continue
            task_id = await world.create()
            for before, after in pairwise(WAYS[current]):
                await world.move(task_id, before, after, expected=True, begins_attempt=False)
            begins_attempt = current in TERMINAL and to not in TERMINAL
            with pytest.raises(REFUSED):
                await world.move(task_id, current, to, expected=False, begins_attempt=begins_attempt)
            try:
                check_transition(current, to, begins_attempt=begins_attempt)
            except WrongState:
                with pytest.raises(REFUSED, match=f"{current} task"):
                    await world.move(task_id, current, to, expected=True, begins_attempt=begins_attempt)
            else:
                await world.move(task_id, current, to, expected=True, begins_attempt=begins_attempt)
                assert (await world.row(task_id))["state"] == to


class OneTask(RuleBasedStateMachine):
    def __init__(self, world: Any, loop: Any) -> None:
        super().__init__()
        self.world, self.loop = world, loop

    def run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(60)

    def check(self, predict: Any, work: Any) -> None:
        """What the rules say of it is what the ledger does."""
        expected = self.outcome(predict)
        before = self.run(self.seen())
        values: tuple[Any, type[TenureError] | None]
        try:
            values = self.run(work), None
        except TenureError as refusal:
            values = None, type(refusal)
        assert values == expected
        after = self.run(self.seen())
        if expected[1] is not None:
            assert after == before
        self.agree(*after)

    def outcome(self, predict: Any) -> Any:
        try:
            return predict(), None
        except TenureError as refusal:
            return None, type(refusal)

    async def seen(self) -> Any:
        return await self.world.row(self.task.task_id), await self.world.point(self.task.task_id)

    def agree(self, row: Any, point: Any) -> None:
        task = self.task
        assert (row["state"], row["attempt"], row["holds"]) == (task.state, task.attempt, task.holds)
        assert (row["epoch"], row["claim_id"]) == (task.opened.epoch, task.opened.claim_id)
        assert tuple(row["open_calls"]) == task.calls
        assert row["ending_state"] == (task.ending.to_state if task.ending else "")
        assert (point.state, point.sequence) == (task.state, row["sequence"])
        self.sequence = row["sequence"]

    @initialize()
    def submit(self) -> None:
        self.task = Expected(self.run(self.world.create()))
        self.granted = None
        self.agree(*self.run(self.seen()))

    @rule()
    def grant_and_open(self) -> None:
        self.granted = self.run(self.world.grant(self.task.task_id))
        self.task.claims.append(self.granted)
        self.open(self.granted)

    @precondition(lambda self: self.task.claims)
    @rule(rng=st.integers(0, 9))
    def open_again(self, rng: int) -> None:
        self.open(self.task.claims[rng % len(self.task.claims)])

    def open(self, claims: Any) -> None:
        granted = self.granted.fence if self.granted else NOBODY
        self.check(lambda: self.task.open(claims, granted), self.world.open(claims))

    @precondition(lambda self: self.task.claims)
    @rule(rng=st.integers(0, 9), number=st.sampled_from([1, 1, 1, 1, 0, 2]))
    def say(self, rng: int, number: int) -> None:
        claims, number = self.owner(rng), max(1, self.task.commits + number)
        self.commit(claims, number, {}, words())

    @precondition(lambda self: self.task.holds and self.task.claims)
    @rule(rng=st.integers(0, 9), to=st.sampled_from([TaskState.QUEUED, *ENDS]))
    def leave(self, rng: int, to: Any) -> None:
        transition = pb.Transition(to_state=STATES.to_wire(to), reason="WHY")
        self.commit(self.owner(rng), self.task.commits + 1, {"to": to}, transition=transition)

    @precondition(lambda self: self.task.holds and self.task.claims)
    @rule(rng=st.integers(0, 9), to=st.sampled_from(PARKED))
    def park(self, rng: int, to: Any) -> None:
        transition = pb.Transition(to_state=STATES.to_wire(to), reason="WHY")
        if to is TaskState.RETRY_SCHEDULED:
            transition.retry_delay.FromSeconds(3600)
            self.commit(self.owner(rng), self.task.commits + 1, {"to": to}, transition=transition)
            return
        call = f"{self.sequence}.0"
        kind = "QUESTION" if to is TaskState.WAITING_USER else "EVENT"
        transition.wait.CopyFrom(
            task_pb2.Wait(call_id=call, kind=task_pb2.WaitKind.Value(f"WAIT_KIND_{kind}"), question="?")
        )
        if kind == "EVENT":
            transition.wait.correlation_id = self.task.task_id
        intent = ledger_pb2.ToolIntent(call_id=call, tool_use_id="use", tool="ask_user", arguments_json="{}")
        predicted = {"to": to, "opens": call}
        self.commit(
            self.owner(rng), self.task.commits + 1, predicted, entry(0, tool_intent=intent), transition=transition
        )

    def owner(self, rng: Any) -> Any:
        """Mostly the newest, now and then one of before."""
        return self.task.claims[0 if rng == 9 else -1]

    def commit(self, claims: Any, number: Any, predicted: Any, *entries: Any, **fields: Any) -> None:
        self.check(
            lambda: self.task.commit(claims, number, **predicted),
            self.world.commit(claims, number, self.sequence, *entries, **fields),
        )

    @rule()
    def cancel(self) -> None:
        fact = ledger_pb2.CancelRequest(reason="enough")
        self.check(
            lambda: self.task.cancel(PendingEnding(TaskState.CANCELLED, "", "", "")),
            self.world.append(self.task.task_id, cancel_request=fact),
        )

    @rule(to=st.sampled_from(CLOSED_OUT))
    def close_out(self, to: Any) -> None:
        act = ledger_pb2.OperatorRequest.CloseOut(to_state=STATES.to_wire(to))
        self.check(
            lambda: self.task.ask_end(PendingEnding(to, "", "", "")),
            self.world.append(
                self.task.task_id, operator_request=ledger_pb2.OperatorRequest(reason="so", close_out=act)
            ),
        )

    @rule()
    def requeue(self) -> None:
        request = ledger_pb2.OperatorRequest(reason="so", requeue=ledger_pb2.OperatorRequest.Requeue())
        self.check(self.task.requeue, self.world.append(self.task.task_id, operator_request=request))

    @precondition(lambda self: self.task.state in WAITING or self.task.state in TERMINAL)
    @rule()
    def answer(self) -> None:
        row, _ = self.run(self.seen())
        wait = task_pb2.Wait.FromString(bytes.fromhex(row["wait"].removeprefix("\\x")))
        if self.task.state is TaskState.WAITING_EXTERNAL and self.task.waiting_call:
            self.check(lambda: self.task.answer(self.task.state), self.world.signal(self.task.task_id))
            return
        answer = pb.WaitAnswer(wait_id=wait.wait_id or "w0", reply="blue")
        work = self.world.append(self.task.task_id, wait_answer=answer)
        self.check(lambda: self.task.answer(TaskState.WAITING_USER), work)

    @precondition(lambda self: self.task.claims)
    @rule(rng=st.integers(0, 9))
    def lose(self, rng: int) -> None:
        claims = self.owner(rng)
        self.check(lambda: self.task.lose(claims), self.world.lose(self.task.task_id, claims.claim_id))

    @rule(what=st.sampled_from(["next_retry_at", "wait_deadline_at", "deadline_at"]))
    def expire(self, what: str) -> None:
        timed_out = PendingEnding(TaskState.TIMED_OUT, "", "", "")
        row, _ = self.run(self.seen())
        if row[what] is None:
            return
        predict = {
            "next_retry_at": self.task.retry,
            "wait_deadline_at": lambda: self.task.expire_wait(timed_out),
            "deadline_at": lambda: self.task.time_out(timed_out),
        }
        self.check(predict[what], self.world.expire(self.task.task_id, what))
        self.run(self.world.execute("update ledger.tasks set deadline_at = now() + interval '1 day'"))

    @rule(rng=st.integers(0, 99), expected=st.sampled_from([True, True, True, False]))
    def move_by_hand(self, rng: int, expected: bool) -> None:
        """Every other one is a move of the table."""
        others = sorted(set(TaskState) - {self.task.state})
        choice = sorted(MOVES[self.task.state]) or others if rng % 2 else others
        to = choice[rng // 2 % len(choice)]
        before, task = self.run(self.seen()), self.task
        work = self.world.move(
            task.task_id,
            task.state,
            to,
            expected=expected,
            begins_attempt=task.state in TERMINAL and to not in TERMINAL,
        )
        try:
            self.run(work)
        except REFUSED:
            assert self.run(self.seen()) == before
            if expected:
                assert self.outcome(lambda: task.move_by_hand(to, NOBODY))[1] is not None
            return
        row, point = self.run(self.seen())
        assert expected
        task.move_by_hand(to, Fence(row["epoch"], row["claim_id"]))
        self.agree(row, point)

    @rule(rng=st.integers(0, 999))
    def tamper(self, rng: int) -> None:
        living = self.task.state not in TERMINAL
        changes = OF_ANY_TASK + ([] if living else OF_ENDED_TASKS)
        changes += [] if self.task.holds else OF_TASKS_THAT_NOBODY_HOLDS
        statements = [f"update ledger.tasks set {change} where task_id = %s" for change in changes] + OF_OTHER_TABLES
        statements += ["delete from ledger.tasks where task_id = %s"] if living else []
        self.refused(statements[rng % len(statements)])

    def refused(self, statement: Any) -> None:
        before = self.run(self.seen())
        with pytest.raises(REFUSED):
            self.run(self.world.execute(statement, self.task.task_id))
        assert self.run(self.seen()) == before
