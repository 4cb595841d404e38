"""Receipts on the real stores: the chain under concurrency, doubts and resolutions, and what the signer refuses."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest

from services.coordinator.claims.issuing import Issuer
from services.coordinator.ledger_client import LedgerClient
from services.coordinator.receipts import CHAIN_BROKEN, Receipts
from services.coordinator.tools_client import ToolsClient
from services.tools.calls.records import CallKey, pack_outcome
from services.tools.calls.start_and_finish import OutcomeMark, finish_calls
from tenure.domain.audit import Head
from tenure.domain.errors import LimitReached, NotFound, Unavailable, WrongState
from tenure.domain.receipts import BrokenReceiptsError, VerifiedReceipts, verify_receipts
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.runtime.request_context import as_tenant
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.security.signing import SignedBytes, Verifier
from tenure.v1 import task_service_pb2 as api
from tenure.v1 import tool_pb2
from tenure.v1.tool_service_pb2 import ExecuteRequest
from tests.conformance.test_ledger_retention import as_operator
from tests.support.fix_checkpoint import Checkpoint, MakeCheckpoint
from tests.support.fix_tools import Grants, Outside, StartTools, ToolClient, execute_request
from tests.support.patience import CALL_SECONDS

pytestmark = pytest.mark.server
UNSAFE = "append_record_unsafe"
ODD = 'ä"\\/\n\u2028\x7f😀'
Change = Callable[..., Awaitable[int]]


class Signing:
    """A coordinator's part, over a ledger and a tool service of a test."""

    def __init__(self, receipts: Receipts, verifying_keys: Path) -> None:
        self.receipts, self._verifier = receipts, Verifier(verifying_keys)

    async def lines(self, task_id: str, **options: Any) -> list[str]:
        """All pages of a task's receipts, with the head."""
        lines, more, after = list[str](), True, 0
        while more:
            request = api.GetReceiptsRequest(task_id=task_id, after_number=after, **options)
            page = await self.receipts.page(request)
            lines += [*page.receipts, *filter(None, [page.head])]
            more, after = page.more, after + len(page.receipts)
        return lines

    def verify(self, lines: list[str], noted: Head | None = None) -> VerifiedReceipts:
        return verify_receipts(lines, self._check, noted)

    def _check(self, key_id: str, signature: bytes, signed: bytes) -> None:
        self._verifier.check(SignedBytes(signed, key_id, signature))


Begin = Callable[[ToolClient], Awaitable[Signing]]


@pytest.fixture
async def ledger(checkpoint: MakeCheckpoint) -> Checkpoint:
    return await checkpoint()


@pytest.fixture
async def signing(ledger: Checkpoint, grants: Grants) -> AsyncIterator[Begin]:
    """Begins the signing of a tool service's records."""
    keys = grants.verifying_keys_file
    async with AsyncExitStack() as stack:

        async def begin(tools: ToolClient) -> Signing:
            channels = [await stack.enter_async_context(open_channel(one.address)) for one in (ledger, tools)]
            issuer = Issuer(keys.with_name("signing.json"), keys)
            return Signing(Receipts(LedgerClient(channels[0]), ToolsClient(channels[1]), issuer), keys)

        yield begin


@pytest.fixture
async def hand(tools_dsn: str) -> AsyncIterator[Change]:
    """SQL written by hand that no trigger stops; it returns the number of changed rows."""
    async with await psycopg.AsyncConnection.connect(tools_dsn, autocommit=True) as postgres:
        await postgres.execute("set search_path to tools")
        await postgres.execute("set session_replication_role = replica")

        async def change(statement: str) -> int:
            return (await postgres.execute(statement.encode())).rowcount

        yield change


def of_tools(whole: VerifiedReceipts) -> list[Any]:
    return [receipt["tool_service"] for receipt in whole.receipts]


def calls_of(whole: VerifiedReceipts) -> list[str]:
    return [part["record"]["call"] for part in of_tools(whole)]


async def test_each_effect_has_a_receipt_in_the_order_of_outcomes(
    tool_service: StartTools, grants: Grants, ledger: Checkpoint, signing: Begin
) -> None:
    tools = await tool_service()
    one = await signing(tools)
    owner = grants.claim((await ledger.create()).task_id, claim_id=ODD)
    await tools.outcome(owner, "1.0", "append_record", file="a", line=ODD)
    await tools.outcome(owner, "1.1", "list_files")
    await tools.outcome(owner, "1.2", UNSAFE, file="a", line="y")
    whole = one.verify(await one.lines(owner.task_id, page_size=1))
    assert calls_of(whole) == ["1.0", "1.2"]
    assert of_tools(whole)[0]["record"]["claim"] == ODD
    assert (whole.task_id, whole.tenant, whole.open_calls) == (owner.task_id, "default", ())
    assert whole.head is not None
    assert whole.head.number == 2
    (alone,) = await one.lines(owner.task_id, call_id="1.2")
    assert of_tools(one.verify([alone])) == of_tools(whole)[1:]
    for call_id, why in (("1.1", "no effect"), ("1.7", "no record of such a call")):
        with pytest.raises(NotFound, match=why):
            await one.lines(owner.task_id, call_id=call_id)
    with as_tenant("somebody-else"), pytest.raises(NotFound):
        await one.lines(owner.task_id)


async def test_receipt_has_the_key_that_the_other_side_got(
    tool_service: StartTools, grants: Grants, ledger: Checkpoint, signing: Begin, outside: Outside, tmp_path: Path
) -> None:
    """Of an effect key, and of an undo. A repeat of an effect is not made, so it has no key."""
    file = tmp_path / "tools.json"
    file.write_text(json.dumps({"built_in": {UNSAFE: {"effect_key": {"arguments": ["/line"], "scope": "task"}}}}))
    tools = await tool_service(config_file=file, sandbox_bubblewrap="/nonexistent/bwrap")
    one, owner = await signing(tools), grants.claim((await ledger.create()).task_id)
    for call_id in ("1.0", "2.0"):
        await tools.outcome(owner, call_id, UNSAFE, file="a", line="x")
    undo = execute_request(owner, "3.0", "append_record", '{"file": "a", "line": "back"}')
    undo.undoes = f"{owner.task_id}/1.0"
    async for _ in tools.stub.Execute(undo, timeout=CALL_SECONDS):
        pass
    made, undone = [line["key"] for line in outside.lines("a")]
    assert undone == f"{made}/undo"
    whole = one.verify(await one.lines(owner.task_id))
    assert [(part["record"]["call"], part["idempotency_key"]) for part in of_tools(whole)] == [
        ("1.0", made),
        ("2.0", ""),
        ("3.0", undone),
    ]


async def test_outcomes_at_once_make_one_chain(
    tool_service: StartTools, grants: Grants, ledger: Checkpoint, signing: Begin
) -> None:
    """At two replicas, while a newer owner joins the calls: fences and records are locked by all of them."""
    here, there = await tool_service(), await tool_service()
    one = await signing(here)
    task_ids = [(await ledger.create()).task_id for _ in range(3)]
    calls = [(task_id, f"{step}.{index}") for task_id in task_ids for step in (1, 2) for index in range(8)]

    def begin(tools: ToolClient, epoch: int, task_id: str, call_id: str) -> asyncio.Task[Any]:
        owner = grants.claim(task_id, epoch=epoch, claim_id=f"claim-{epoch}")
        return tools.begin(owner, call_id, "append_record", file="a", line="x", delay_ms=200)

    running = [begin(here if call_id[0] == "1" else there, 10, task_id, call_id) for task_id, call_id in calls]
    joining = [begin(there if call_id[0] == "1" else here, 11, task_id, call_id) for task_id, call_id in calls]
    outcomes = await asyncio.gather(*joining)
    assert {outcome.status for outcome in outcomes} == {OutcomeStatus.SUCCEEDED}
    await asyncio.gather(*running, return_exceptions=True)
    for task_id in task_ids:
        whole = one.verify(await one.lines(task_id))
        assert sorted(calls_of(whole)) == sorted(call_id for of_task, call_id in calls if of_task == task_id)


async def test_doubt_has_a_receipt_when_its_outcome_is_known(
    tool_service: StartTools, grants: Grants, ledger: Checkpoint, signing: Begin, tools_dsn: str
) -> None:
    """By a late outcome of the lost runner, or by a person's resolution; before, the head lists the call as open."""
    dying, tools = await tool_service(), await tool_service()
    one = await signing(tools)
    owner = grants.claim((await ledger.create()).task_id)
    arguments: dict[str, Any] = {"file": "a", "line": "x", "delay_ms": 20_000}
    for call_id in ("1.0", "1.1"):
        dying.begin(owner, call_id, UNSAFE, **arguments)
    await dying.started(owner, 2)
    assert one.verify(await one.lines(owner.task_id)).open_calls == ("1.0", "1.1")
    await dying.kill()
    for call_id in ("1.0", "1.1"):
        assert (await tools.outcome(owner, call_id, UNSAFE, **arguments)).status is OutcomeStatus.IN_DOUBT
    with pytest.raises(NotFound, match="IN_DOUBT"):
        await one.lines(owner.task_id, call_id="1.0")
    late = Outcome(OutcomeStatus.SUCCEEDED, "late", call_attempt=1)
    async with await psycopg.AsyncConnection.connect(tools_dsn, autocommit=True) as postgres:
        await postgres.execute("set search_path to tools")
        mark = OutcomeMark(CallKey(UUID(owner.task_id), "1.1"), 1, pack_outcome(late))
        connection: Any = postgres
        assert [await finish_calls(connection, [mark]) for _ in range(2)] == [[True], [False]]
    await resolve_as_happened(tools, execute_request(owner, "1.0", UNSAFE, json.dumps(arguments)), call_attempt=1)
    whole = one.verify(await one.lines(owner.task_id))
    found = [(part["record"]["call"], part["outcome"]["detail"]) for part in of_tools(whole)]
    assert (found, whole.open_calls) == ([("1.1", ""), ("1.0", "HAPPENED")], ())


async def test_call_that_had_begun_is_open_between_its_attempts(
    tool_service: StartTools, grants: Grants, ledger: Checkpoint, signing: Begin, outside: Outside
) -> None:
    """Its replica was killed after the effect, and the start of its repeat was withdrawn. Its receipt has the start."""
    dying = await tool_service(failpoints="tools.after_effect=kill9")
    tools = await tool_service(failpoints="tools.before_effect=1#error(LIMIT_REACHED)")
    one, owner = await signing(tools), grants.claim((await ledger.create()).task_id)
    arguments = {"file": "a", "line": "x"}
    with pytest.raises(Unavailable):
        await dying.outcome(owner, "1.0", "append_record", **arguments)
    await dying.ended()
    with pytest.raises(LimitReached):
        await tools.outcome(owner, "1.0", "append_record", **arguments)
    assert (await tools.fence(owner))["1.0"].state == tool_pb2.CALL_STATE_ACCEPTED
    assert one.verify(await one.lines(owner.task_id)).open_calls == ("1.0",)
    assert (await tools.fence(owner, close=True))["1.0"].state == tool_pb2.CALL_STATE_IN_DOUBT
    later = execute_request(grants.claim(owner.task_id, epoch=11), "1.0", "append_record", json.dumps(arguments))
    await resolve_as_happened(tools, later, call_attempt=3)
    whole = one.verify(await one.lines(owner.task_id))
    (made,), (receipt,) = outside.lines("a"), of_tools(whole)
    assert (receipt["idempotency_key"], whole.open_calls) == (made["key"], ())
    assert receipt["record"]["start_time"] > receipt["record"]["accept_time"]


async def resolve_as_happened(tools: ToolClient, request: ExecuteRequest, call_attempt: int) -> None:
    """A person says that a call in doubt happened."""
    decision = tool_pb2.InDoubtDecision(happened=tool_pb2.InDoubtDecision.Happened(result="seen"))
    given = tool_pb2.CallResolution(call_attempt=call_attempt, decision=decision, reason="x", actor="ann")
    request.resolution.CopyFrom(given)
    assert [answer async for answer in tools.stub.Execute(request, timeout=CALL_SECONDS)]


async def test_receipts_outlive_the_task_that_approved_the_plan(
    tool_service: StartTools, grants: Grants, ledger: Checkpoint, signing: Begin, hand: Change
) -> None:
    tools = await tool_service()
    one, pruned = await signing(tools), await ledger.claim((await ledger.create()).task_id)
    await pruned.end()
    await as_operator(ledger, task_id=pruned.task.task_id)
    owner, plan_id = grants.claim((await ledger.create()).task_id), f"{pruned.task.task_id}/7"
    await tools.outcome(owner, "1.0", "append_record", file="a", line="x")
    await hand(f"update calls set plan_id = '{plan_id}' where task_id = '{owner.task_id}'")
    [receipt] = one.verify(await one.lines(owner.task_id)).receipts
    assert receipt["ledger"]["approval"] == {"plan": plan_id}


CHANGES = [
    ("update calls set outcome = outcome || '\\x12024f4b'::bytea where call_id = '1.1'", "call 1.1"),
    ("update calls set tool = 'other' where call_id = '1.0'", "call 1.0"),
    ("update calls set finished_at = finished_at - interval '1 us' where call_id = '1.0'", "call 1.0"),
    ("update calls set receipt_number = null, receipt_link = null where call_id = '1.1'", "receipt 2 of task"),
    ("update calls set receipt_number = receipt_number + 1", "receipt 1 of task"),
    ("delete from calls where call_id = '1.2'", "end with number 2, but there were 3"),
    ("update fences set receipt_head = sha256('x')", "not the head"),
    ("update fences set receipts = 4", "there were 4"),
]


async def test_record_changed_by_hand_is_not_signed(
    tool_service: StartTools, grants: Grants, ledger: Checkpoint, signing: Begin, hand: Change
) -> None:
    tools = await tool_service()
    one = await signing(tools)
    for statement, problem in CHANGES:
        owner = grants.claim((await ledger.create()).task_id)
        for index in range(3):
            await tools.outcome(owner, f"1.{index}", UNSAFE, file="a", line="x")
        assert len(await one.lines(owner.task_id)) == 4
        condition = "and" if " where " in statement else "where"
        assert await hand(f"{statement} {condition} task_id = '{owner.task_id}'") >= 1
        for options in ({}, {"call_id": "1.0"}):
            with pytest.raises(WrongState, match=problem) as refused:
                await one.lines(owner.task_id, **options)
            assert refused.value.reason == CHAIN_BROKEN


async def test_noted_head_shows_that_an_older_database_was_restored(
    tool_service: StartTools, grants: Grants, ledger: Checkpoint, signing: Begin, hand: Change
) -> None:
    """The chain goes on from its older head, and each receipt of it is good."""
    tools = await tool_service()
    one = await signing(tools)
    owner = grants.claim((await ledger.create()).task_id)
    for index in range(2):
        await tools.outcome(owner, f"1.{index}", UNSAFE, file="a", line="x")
    before = one.verify(await one.lines(owner.task_id))
    await hand("delete from calls where receipt_number = 2")
    await hand("update fences set receipts = 1, receipt_head = (select receipt_link from calls)")
    await tools.outcome(owner, "1.1", UNSAFE, file="a", line="x")
    lines = await one.lines(owner.task_id)
    assert len(one.verify(lines).receipts) == 2
    with pytest.raises(BrokenReceiptsError, match="noted"):
        one.verify(lines, before.head)


async def test_record_with_a_receipt_does_not_change(
    tools: ToolClient, grants: Grants, tools_database: Callable[..., Awaitable[list[Any]]]
) -> None:
    owner = grants.claim()
    await tools.outcome(owner, "1.0", UNSAFE, file="a", line="x")
    await tools.outcome(owner, "1.1", "list_files")
    with pytest.raises(psycopg.errors.CheckViolation, match="has a receipt"):
        await tools_database("update calls set finished_at = now() where task_id = %s", owner.task_id)
    assert await tools_database("select receipts from fences where task_id = %s", owner.task_id) == [(1,)]
