"""Stops at the tool service: after the answer no covered call begins, at any replica, whatever it races with."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from services.tools.calls.accept_new import FIRST_ATTEMPT, accept_new_calls
from services.tools.calls.executing import ExecuteJob
from services.tools.calls.records import CallKey, CallRequest
from services.tools.calls.runs import RunningCalls
from services.tools.calls.start_and_finish import StartMark, start_batcher
from services.tools.calls.stops import StopKeeper, StopView, list_calls_in_flight
from services.tools.rules.changes import RuleChanges
from services.tools.statements import QUERIES, SCHEMA, SESSION_SETTINGS
from services.tools.tool import Tool, ToolAnswer, ToolInDoubt, ToolWork, define
from tenure.domain.errors import Unavailable
from tenure.domain.fencing import Claims
from tenure.domain.stops import Stop
from tenure.domain.tools import EffectClass, OutcomeStatus
from tenure.runtime.failpoints import arm, disarm
from tenure.runtime.process import Duties, NoLimit
from tenure.runtime.store.batching import Batcher
from tenure.runtime.store.dedicated_connection import DedicatedConnection
from tenure.runtime.store.postgres import PoolOptions, open_pool
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_service_pb2 as pb
from tests.conformance.test_tools_own import called, came_to, own_request
from tests.support.executors import executor_over, last_outcome
from tests.support.fix_tools import Grants, Outside, StartTools, ToolClient, appear
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.tool_rules import ALLOW, rule

CALLERS = 50
CONNECTIONS = 10
CHECK = b"where (select epoch from stop_epoch) = %(stop_epoch)b::bigint"
ACME = Stop(tenant="acme", reason="a wrong bill", stopped_by="ann", stop_time=datetime.now(UTC), epoch=1)


def request(call: int = 0, tool: str = "tool", tenant: str = "acme") -> CallRequest:
    task_id = uuid.uuid4()
    claims = Claims(f"tasks/{task_id}", tenant, 10, "mine", "worker", agent="billing", queue="q")
    return CallRequest(CallKey(task_id, f"1.{call}"), claims, tool, EffectClass.KEYED, b"{}")


class Replicas:
    """Several replicas' connections over one database, and the keeper of one of them."""

    def __init__(self, dsn: str, kept: list[DedicatedConnection], keeper: StopKeeper, pool: Any) -> None:
        self.dsn, self.kept, self.keeper, self.pool = dsn, kept, keeper, pool
        self.runner_id = uuid.uuid4()

    async def count(self, state: str) -> int:
        async with self.pool.connection() as postgres:
            row = await (await postgres.execute("select count(*) from calls where state = %s", [state])).fetchone()
        return int(row[0])


@pytest.fixture
async def replicas(tools_dsn: str) -> AsyncIterator[Replicas]:
    options = PoolOptions(settings=SESSION_SETTINGS)
    async with AsyncExitStack() as opened:
        pool = await opened.enter_async_context(open_pool(tools_dsn, service="tools", schema=SCHEMA, options=options))
        kept = [
            await opened.enter_async_context(
                DedicatedConnection(tools_dsn, service="tools", schema=SCHEMA, options=options)
            )
            for _ in range(CONNECTIONS)
        ]
        yield Replicas(tools_dsn, kept, StopKeeper(pool, RunningCalls(), StopView()), pool)


async def test_no_call_is_accepted_after_a_stop(replicas: Replicas) -> None:
    """50 callers over ten connections accept calls all the time, by their own view of the stops."""
    stopping, stopped = asyncio.Event(), asyncio.Event()
    locks, views = [asyncio.Lock() for _ in replicas.kept], [StopView() for _ in replicas.kept]

    async def call(place: int) -> None:
        kept, lock, view = replicas.kept[place], locks[place], views[place]
        accepted = 0
        while not stopped.is_set():
            async with lock, kept.statements() as postgres:
                if view.in_force.epoch < 0 and not stopping.is_set():
                    await view.refresh(postgres)
                verdicts = await accept_new_calls(postgres, [request()], [True], replicas.runner_id, view)
            accepted += verdicts[0] is not None
            if accepted == 3:
                stopping.set()

    callers = [asyncio.create_task(call(number % CONNECTIONS)) for number in range(CALLERS)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        await stopping.wait()
        await replicas.keeper.take(1, [ACME])
        begun = await replicas.count("STARTED")
        await asyncio.sleep(0.2)  # what could still come would come now
        assert await replicas.count("STARTED") == begun
        stopped.set()
        await asyncio.gather(*callers)
    assert begun >= 3


async def test_stop_waits_for_an_accept_that_began_before(replicas: Replicas) -> None:
    """The accept waits for the fence's lock with a snapshot from before the stop, and commits after it."""
    late, view = request(), StopView()
    async with AsyncExitStack() as opened:
        other = await psycopg.AsyncConnection.connect(replicas.dsn, options=f"-c search_path={SCHEMA}")
        await opened.enter_async_context(other)
        await other.execute("insert into fences (task_id, tenant) values (%s, 'acme')", [late.key.task_id])
        await other.commit()
        await other.execute("select from fences where task_id = %s for update", [late.key.task_id])
        async with replicas.kept[0].statements() as postgres:
            await view.refresh(postgres)
            accepting = asyncio.create_task(accept_new_calls(postgres, [late], [True], replicas.runner_id, view))
            await _until_one_waits_for_a_lock(replicas)
            stopping = asyncio.create_task(replicas.keeper.take(1, [ACME]))
            await asyncio.wait({stopping}, timeout=0.3)
            assert not stopping.done()
            await other.commit()
            async with asyncio.timeout(PATIENCE_SECONDS):
                assert (await accepting)[0] is not None
                await stopping
    assert await replicas.count("STARTED") == 1


async def _until_one_waits_for_a_lock(replicas: Replicas) -> None:
    query = (
        "select exists (select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database())"
    )
    async with asyncio.timeout(PATIENCE_SECONDS), replicas.pool.connection() as postgres:
        while not (await (await postgres.execute(query)).fetchone())[0]:
            await asyncio.sleep(0.01)


async def test_accepted_call_does_not_start_after_a_stop(replicas: Replicas) -> None:
    """It was accepted before the stop, waits for its lane, and its replica does not know of the stop."""
    async with starting(replicas) as (starts, stopped, free):
        await replicas.keeper.take(1, [ACME])
        with pytest.raises(Unavailable) as refusal:
            await starts.submit(StartMark(stopped.key, 1, stopped))
        assert refusal.value.reason == "STOPPED"
        assert "ann stopped tenant acme: a wrong bill" in refusal.value.message
        assert await starts.submit(StartMark(free.key, 1, free))
        await replicas.keeper.take(2, [])
        assert await starts.submit(StartMark(stopped.key, 1, stopped))


@asynccontextmanager
async def starting(replicas: Replicas) -> AsyncIterator[tuple[Batcher[StartMark, bool], CallRequest, CallRequest]]:
    """The batcher of starts of a replica that has read no stop, and two accepted calls: of acme, and of another."""
    mine, others, view = request(), request(tenant="other"), StopView()
    async with replicas.kept[0].statements() as postgres:
        await view.refresh(postgres)
        for one in (mine, others):
            assert await accept_new_calls(postgres, [one], [False], replicas.runner_id, view) == [FIRST_ATTEMPT]
    starts = start_batcher(replicas.kept[1], _Life(replicas.runner_id), view)  # type: ignore[arg-type]
    async with Duties() as duties:
        duties.start("starts", starts.run, silence_seconds=NoLimit("a test"))
        yield starts, mine, others


async def test_start_without_the_check_passes_a_stop(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the test above: with the check dropped from the statement, the stopped call starts."""
    whole = QUERIES.start_calls
    assert whole.count(CHECK) == 1
    monkeypatch.setitem(QUERIES._statements, "start_calls", whole.replace(CHECK, b"where %(stop_epoch)b::bigint >= 0"))
    async with starting(replicas) as (starts, stopped, _):
        await replicas.keeper.take(1, [ACME])
        assert await starts.submit(StartMark(stopped.key, 1, stopped))


async def test_settlement_makes_no_try_after_a_stop(replicas: Replicas, tmp_path: Path) -> None:
    """Its replica does not know of the stop yet: the statement before each try compares the epoch."""
    tries, tried_again = 0, asyncio.Event()

    async def pay(_context: Any, _arguments: Any) -> ToolAnswer:
        nonlocal tries
        tries += 1
        if tries == 2:
            tried_again.set()
        raise ToolInDoubt("The bank gave no answer.")

    settled = request()
    async with executor_over(replicas.dsn, tmp_path) as executor, asyncio.timeout(PATIENCE_SECONDS):
        job = ExecuteJob(settled, ToolWork(Tool(define("tool", EffectClass.KEYED, "pays", {}), pay), {}))
        call = asyncio.create_task(last_outcome(executor, job))
        await tried_again.wait()
        await replicas.keeper.take(1, [ACME])
        with pytest.raises(Unavailable) as refusal:
            await call
    assert (refusal.value.reason, tries) == ("STOPPED", 2)
    assert await replicas.count("STARTED") == 1


async def test_settlement_stops_when_others_read_the_stop(replicas: Replicas, tmp_path: Path) -> None:
    """The accept of another call tells the replica of the stop, and the duty that cancels calls has not looked yet."""
    tries, trying, may_end = 0, asyncio.Event(), asyncio.Event()

    async def pay(_context: Any, _arguments: Any) -> ToolAnswer:
        nonlocal tries
        tries += 1
        if tries == 2:
            trying.set()
            await may_end.wait()
        raise ToolInDoubt("The bank gave no answer.")

    async def look(_context: Any, _arguments: Any) -> ToolAnswer:
        return ToolAnswer("seen")

    settled, other = request(), request(tool="look", tenant="other")
    async with executor_over(replicas.dsn, tmp_path) as executor, asyncio.timeout(PATIENCE_SECONDS):
        job = ExecuteJob(settled, ToolWork(Tool(define("tool", EffectClass.KEYED, "pays", {}), pay), {}))
        call = asyncio.create_task(last_outcome(executor, job))
        await trying.wait()
        await replicas.keeper.take(1, [ACME])
        looks = Tool(define("look", EffectClass.PURE, "looks", {}), look)
        assert (await last_outcome(executor, ExecuteJob(other, ToolWork(looks, {})))).content == "seen"
        may_end.set()
        with pytest.raises(Unavailable) as refusal:
            await call
    assert (refusal.value.reason, tries) == ("STOPPED", 2)


async def test_accept_decides_by_its_own_read_of_the_stops(replicas: Replicas, tmp_path: Path) -> None:
    """A read from before the stop reaches the replica while a transaction from after its answer decides."""
    never, locked, go_on = request(), tmp_path / "locked", tmp_path / "go-on"

    async def never_called(_context: Any, _arguments: Any) -> ToolAnswer:
        raise AssertionError("a stopped call ran")

    work = ToolWork(Tool(define("tool", EffectClass.KEYED, "pays", {}), never_called), {})
    async with executor_over(replicas.dsn, tmp_path) as executor, asyncio.timeout(PATIENCE_SECONDS):
        ruled = executor._ruled
        made = admin_pb.SetToolRuleRequest(tool_rule=rule("all", ALLOW, tool="tool"), actor="user/ann")
        await RuleChanges(ruled._pool, ruled.book, ruled._expressions).set("acme", made)
        async with replicas.kept[0].statements() as postgres:
            late_read = await (await postgres.execute(QUERIES.read_stops)).fetchall()
        await replicas.keeper.take(1, [ACME])
        arm(f"tools.bounds_locked=touch({locked})->wait({go_on})")
        try:
            call = asyncio.create_task(last_outcome(executor, ExecuteJob(never, work)))
            await appear(locked)
            executor._stops.take(late_read)
            go_on.touch()
            with pytest.raises(Unavailable) as refusal:
                await call
        finally:
            disarm()
    assert refusal.value.reason == "STOPPED"
    assert await replicas.count("ACCEPTED") == 0


class _Life:
    """A runner that lives."""

    def __init__(self, runner_id: uuid.UUID) -> None:
        self.runner_id = runner_id


async def test_running_calls_of_the_tool_are_listed_first(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither calls of other tools nor calls that have ended take the places of those that run."""
    monkeypatch.setattr("services.tools.calls.stops.MAX_CALLS", 2)
    since, view = datetime.now(UTC), StopView()
    batch = [request(number, tool) for number, tool in enumerate(["xsearch", "xsearch", "xsearch", "x_a", "x_b"])]
    async with replicas.kept[0].statements() as postgres:
        await view.refresh(postgres)
        await accept_new_calls(postgres, batch, [True] * len(batch), replicas.runner_id, view)
    async with replicas.pool.connection() as postgres:
        ended = "update calls set state = 'FINISHED', outcome = 'x', finished_at = now() where tool = 'x_a'"
        await postgres.execute(ended)

    async def listed(tool: str) -> tuple[list[str], bool]:
        ids = [str(one.key.task_id) for one in batch]
        answer = await list_calls_in_flight(replicas.pool, ids, since, tool)
        return [call.tool for call in answer.calls], answer.more

    assert await listed("x_*") == (["x_b", "x_a"], False)
    assert await listed("xsearch") == (["xsearch", "xsearch"], True)
    assert (await listed(""))[1]


async def test_older_stops_are_not_taken(replicas: Replicas) -> None:
    """A coordinator that was frozen, or an older ledger, must not end a stop."""
    stop = replace(ACME, tenant="", tool="mail_*", epoch=7)
    await replicas.keeper.take(7, [stop])
    kept = await replicas.keeper.take(6, [])
    assert (kept.epoch, [one.selectors for one in kept.stops]) == (7, [stop.selectors])


def stops_request(epoch: int, *stops: admin_pb.Stop) -> pb.SetStopsRequest:
    for stop in stops:
        stop.stop_time.GetCurrentTime()
    return pb.SetStopsRequest(epoch=epoch, stops=stops)


async def test_running_calls_stop_by_their_effect_class(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    """A KEYED call stops and runs again after the stop, with its key; an UNSAFE call runs to its end."""
    tools = await tool_service()
    keyed, unsafe, other = grants.claim(), grants.claim(), grants.claim(tenant="other")
    since = Timestamp()
    since.GetCurrentTime()
    slow: dict[str, Any] = {"line": "x", "delay_ms": 3000}
    cut = tools.begin(keyed, "1.0", "append_record", file="keyed", **slow)
    whole = tools.begin(unsafe, "1.0", "append_record_unsafe", file="unsafe", **slow)
    await tools.started(keyed)
    await tools.started(unsafe)
    stop = admin_pb.Stop(tenant=grants.tenant, reason="a wrong bill", stopped_by="ann", epoch=1)
    await tools.stub.SetStops(stops_request(1, stop), timeout=CALL_SECONDS)
    with pytest.raises(Unavailable) as refusal:
        await cut
    assert refusal.value.reason == "STOPPED"
    assert outside.lines("keyed") == []
    with pytest.raises(Unavailable):
        await tools.outcome(grants.claim(), "1.0", "append_record", file="never", line="x")
    assert (await certainties(tools, since, keyed.task_id, unsafe.task_id)) == ["MAY_HAVE_HAPPENED", "STILL_RUNS"]
    async with ToolClient(tools.address, tenant="other").channel:
        assert (
            await tools.outcome(other, "1.0", "append_record", file="o", line="x")
        ).status is OutcomeStatus.SUCCEEDED
    assert (await whole).status is OutcomeStatus.SUCCEEDED
    assert await certainties(tools, since, unsafe.task_id) == ["ENDED"]
    await tools.stub.SetStops(stops_request(2), timeout=CALL_SECONDS)
    again = await tools.outcome(keyed, "1.0", "append_record", file="keyed", **slow)
    assert (again.status, again.call_attempt) == (OutcomeStatus.SUCCEEDED, 2)
    assert [line["key"] for line in outside.lines("keyed")] == [f"{keyed.task_id}/1.0"]
    assert (len(outside.lines("unsafe")), outside.lines("never")) == (1, [])


async def certainties(tools: ToolClient, since: Timestamp, *task_ids: str) -> list[str]:
    request = pb.ListCallsInFlightRequest(task_ids=task_ids, stop_time=since)
    calls = (await tools.stub.ListCallsInFlight(request, timeout=CALL_SECONDS)).calls
    by_task = {call.task_id: admin_pb.CallCertainty.Name(call.certainty) for call in calls}
    return [by_task[task_id].removeprefix("CALL_CERTAINTY_") for task_id in task_ids]


async def test_stop_reaches_the_calls_of_other_replicas(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    here, there = await tool_service(), await tool_service()
    owner = grants.claim()
    cut = there.begin(owner, "1.0", "append_record", file="a", line="x", delay_ms=10_000)
    await there.started(owner)
    await here.stub.SetStops(
        stops_request(1, admin_pb.Stop(tool="append_*", reason="r", epoch=1)), timeout=CALL_SECONDS
    )
    with pytest.raises(Unavailable) as refusal:
        await cut
    assert refusal.value.reason == "STOPPED"
    assert outside.lines("a") == []


async def test_own_unsafe_call_does_not_begin_after_a_stop(tool_service: StartTools, grants: Grants) -> None:
    """Its stream broke before the worker read the order: the repeated order only joins a run, and there is none."""
    tools, owner = await tool_service(), grants.claim()
    lost = await called(tools, own_request(owner, EffectClass.UNSAFE))
    await lost.ordered(1)
    lost.break_off()
    await tools.stub.SetStops(stops_request(1, admin_pb.Stop(reason="r", epoch=1)), timeout=CALL_SECONDS)
    repeated = await called(tools, own_request(owner, EffectClass.UNSAFE))
    assert (await repeated.event("run_here")).again
    await repeated.say(came_to(1, "", OutcomeStatus.NOT_RUN))
    refusal = await repeated.refusal()
    assert isinstance(refusal, Unavailable)
    assert refusal.reason == "STOPPED"
    await tools.stub.SetStops(stops_request(2), timeout=CALL_SECONDS)
    later = await called(tools, own_request(grants.claim(owner.task_id, epoch=11), EffectClass.UNSAFE))
    order = await later.event("run_here")
    assert (order.again, order.call_attempt > 1) == (False, True)
    await later.say(came_to(order.call_attempt, "sent"))
    assert (await later.outcome()).content == "sent"


async def test_recorded_outcome_is_answered_during_a_stop(
    tool_service: StartTools, grants: Grants, outside: Outside
) -> None:
    tools, owner = await tool_service(), grants.claim()
    first = await tools.outcome(owner, "1.0", "append_record", file="a", line="x")
    await tools.stub.SetStops(stops_request(1, admin_pb.Stop(reason="r", epoch=1)), timeout=CALL_SECONDS)
    assert await tools.outcome(owner, "1.0", "append_record", file="a", line="x") == first
    assert len(outside.lines("a")) == 1
