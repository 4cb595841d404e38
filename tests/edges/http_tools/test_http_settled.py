"""A bank that pays and loses its answer: one payment, and the model reads what truly happened."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from tenure.domain.errors import Unavailable
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_pb2
from tests.conformance.test_tools_stops import certainties, stops_request
from tests.support.bank import Bank, open_bank
from tests.support.fix_tools import Grants, Owner, StartTools, ToolReplica, execute_request
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import first

LOST = ["reset", "hang", "500", "503", "empty", "cut", "unread"]
ODD = [b"", b"true", b"[]", b'{"happened": "true"}', b'{"happened": 1}', b'{"happened": null}', b"{", b"\xff\xfe"]
StartBankTools = Callable[..., Awaitable[ToolReplica]]
Query = Callable[..., Awaitable[list[Any]]]


@pytest.fixture
def bank_tools(tool_service: StartTools, tmp_path: Path) -> StartBankTools:
    """Starts a replica with the tools of one bank, or of several, by the ends of their names."""

    async def start(banks: Bank | dict[str, Bank], failpoints: str = "", **tool: Any) -> ToolReplica:
        named = {"": banks} if isinstance(banks, Bank) else banks
        settle = tool.pop("settle", None)
        sections: dict[str, Any] = {}
        for name, bank in named.items():
            sections |= bank.config(name, settle=settle and dict(settle), **tool)
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps({"http_tools": sections}))
        return await tool_service(config_file=path, sandbox_bubblewrap="/nonexistent/bwrap", failpoints=failpoints)

    return start


async def paid_at_each(tools: ToolReplica, owner: Owner, banks: dict[str, Bank]) -> list[Outcome]:
    calls = [tools.outcome(owner, f"1.{index}", f"pay{name}") for index, name in enumerate(banks)]
    return await asyncio.gather(*calls)


async def opened(stack: AsyncExitStack, ends: list[str], **options: Any) -> dict[str, Bank]:
    return {f"_{end}": await stack.enter_async_context(open_bank(end, end, **options)) for end in ends}


async def test_keyed_call_of_unknown_end_is_repeated(bank_tools: StartBankTools, grants: Grants) -> None:
    """Whatever loses the answer: the bank is asked again with the same key, until it answers."""
    async with AsyncExitStack() as stack:
        banks, owner = await opened(stack, LOST), grants.claim()
        outcomes = await paid_at_each(await bank_tools(banks), owner, banks)
    for index, (bank, outcome) in enumerate(zip(banks.values(), outcomes, strict=True)):
        assert (outcome.status, outcome.content) == (OutcomeStatus.SUCCEEDED, "receipt 1")
        assert [asked.key for asked in bank.asked] == [f"{owner.task_id}/1.{index}"] * 3
        assert len(bank.payments) == 1


async def test_check_settles_an_unsafe_call(bank_tools: StartBankTools, grants: Grants) -> None:
    """The bank knows no keys: a repeat would be a second payment."""
    async with AsyncExitStack() as stack:
        banks = await opened(stack, LOST, honours_keys=False)
        tools = await bank_tools(banks, effect_class="UNSAFE", settle={"checks": True})
        outcomes = await paid_at_each(tools, grants.claim(), banks)
    for bank, outcome in zip(banks.values(), outcomes, strict=True):
        assert (outcome.status, outcome.detail) == (OutcomeStatus.SUCCEEDED, "HAPPENED")
        assert json.loads(outcome.content) == {"receipt": 1}
        assert len(bank.payments) == 1
        pay, find = bank.asked
        assert find.path == f"/payments?key={pay.key.replace('/', '%2F')}"
        assert find.key == f"{pay.key}/check"


@pytest.mark.parametrize("effect_class", first(["UNSAFE", "KEYED"]))
async def test_check_that_does_not_know_leaves_a_doubt(
    effect_class: str, bank_tools: StartBankTools, grants: Grants, tools_database: Query
) -> None:
    """`It did not happen` does not end the call either: the request may be on its way. A person gets the finding."""
    says = {f"_{index}": answer for index, answer in enumerate([b'{"happened": false}', *ODD])}
    async with AsyncExitStack() as stack:
        banks = {name: await stack.enter_async_context(open_bank(*["500"] * 9, says=says[name])) for name in says}
        settle = {"checks": True, "for": "0.6s"}
        tools, owner = await bank_tools(banks, effect_class=effect_class, settle=settle), grants.claim()
        outcomes = await paid_at_each(tools, owner, banks)
    for bank, outcome in zip(banks.values(), outcomes, strict=True):
        assert outcome.status is OutcomeStatus.IN_DOUBT
        assert "do not make it again" in outcome.content
        assert len(bank.payments) == 1
    notes = dict(await tools_database("select call_id, doubt_note from calls where state = 'IN_DOUBT'"))
    assert "find_payment_0 said that it did not happen." in notes["1.0"]
    listed = (await tools.stub.ListInDoubtCalls(admin_pb.ListInDoubtCallsRequest(), timeout=CALL_SECONDS)).calls
    assert {one.call.call_id: one.call.note for one in listed} == notes
    assert not any(one.call.runner_gone for one in listed)


@pytest.mark.faults
async def test_settlement_ends_though_a_newer_owner_never_joins(bank_tools: StartBankTools, grants: Grants) -> None:
    """Such as one that lost the task before it opened the call. No check begins under its claim."""
    async with open_bank("500", says=b'{"happened": null}') as bank:
        settle = {"checks": True, "for": "2s"}
        tools, owner = await bank_tools(bank, effect_class="UNSAFE", settle=settle), grants.claim()
        paying = tools.begin(owner, "1.0", "pay")
        await bank.until_asked(1)
        await tools.fence(grants.claim(owner.task_id, epoch=11))
        assert (await paying).status is OutcomeStatus.IN_DOUBT


@pytest.mark.faults
async def test_keyed_call_without_an_answer_is_in_doubt(bank_tools: StartBankTools, grants: Grants) -> None:
    """So is one that is not settled at all. A late answer of the bank would end the doubt."""
    async with open_bank(*["500"] * 9) as bank, open_bank("500") as other:
        tools = await bank_tools({"": bank, "_off": other}, settle={"for": 0})
        repeating, owner = await bank_tools(bank, settle={"for": "1s"}), grants.claim()
        off = await tools.outcome(owner, "1.0", "pay_off")
        given_up = await repeating.outcome(owner, "1.1", "pay")
    assert (off.status, given_up.status) == (OutcomeStatus.IN_DOUBT, OutcomeStatus.IN_DOUBT)
    assert (len(other.asked), len(bank.payments)) == (1, 1)
    assert "HTTP 500" in given_up.content
    assert "Tenure tried" in given_up.content


async def test_refusal_of_a_repeat_says_nothing_about_the_call(bank_tools: StartBankTools, grants: Grants) -> None:
    """A bank that is away, or that refuses this sender now; a refusal of the payment itself is an answer."""
    async with open_bank("500", "away", "401", "429", "409") as bank, open_bank("500", "refused") as refusing:
        tools, owner = await bank_tools({"": bank, "_no": refusing}, settle={"for": "60s"}), grants.claim()
        paid, refused = await asyncio.gather(tools.outcome(owner, "1.0", "pay"), tools.outcome(owner, "1.1", "pay_no"))
    assert (paid.content, len(bank.payments), len(bank.asked)) == ("receipt 1", 1, 6)
    assert (refused.status, refused.detail) == (OutcomeStatus.FAILED, "HTTP_402")


async def test_pause_of_a_settlement_holds_no_slot(bank_tools: StartBankTools, grants: Grants) -> None:
    async with open_bank("500", "500", "500") as bank:
        tools, owner = await bank_tools(bank, max_calls=1), grants.claim()
        settled = tools.begin(owner, "1.0", "pay")
        await bank.until_asked(1)
        bank.ends.clear()
        assert (await tools.outcome(owner, "1.1", "pay")).status is OutcomeStatus.SUCCEEDED
        assert len(bank.asked) == 2, "the other call waited for the settlement"
        assert (await settled).content == "receipt 2"
    assert len(bank.payments) == 2


@pytest.mark.parametrize("failpoint", first(["before_repeat", "after_settling", "after_effect"]))
async def test_settlement_goes_on_after_its_runner_died(
    failpoint: str, bank_tools: StartBankTools, grants: Grants, tools_database: Query
) -> None:
    async with open_bank("500", "500") as bank:
        dying, other = await bank_tools(bank, failpoints=f"tools.{failpoint}=kill9"), await bank_tools(bank)
        owner = grants.claim()
        lost = dying.begin(owner, "1.0", "pay")
        await dying.ended()
        began = await tools_database("select settling_since from calls")
        if failpoint != "after_effect":
            bank.ends[:] = ["500"]
        outcome = await other.outcome(grants.claim(owner.task_id, epoch=11), "1.0", "pay")
        lost.cancel()
    assert (outcome.content, outcome.call_attempt) == ("receipt 1", 2)
    assert len(bank.payments) == 1
    assert began == await tools_database("select settling_since from calls")


@pytest.mark.faults
async def test_check_settles_a_call_whose_runner_died(
    bank_tools: StartBankTools, grants: Grants, tools_database: Query
) -> None:
    """In the middle of the payment, and again before the check: nobody pays again, and nobody has to look.

    The check asks for the key that the bank got, which is that of an effect key.
    """
    key = {"arguments": ["/order"], "scope": "task"}
    unsafe = {"effect_class": "UNSAFE", "settle": {"checks": True}, "effect_key": key}
    async with open_bank("held", honours_keys=False) as bank:
        dying = await bank_tools(bank, **unsafe)
        owner = grants.claim()
        lost = dying.begin(owner, "1.0", "pay", order=7)
        await bank.until_asked(1)
        await dying.kill()
        checking = await bank_tools(bank, failpoints="tools.before_check=kill9", **unsafe)
        again = checking.begin(grants.claim(owner.task_id, epoch=11), "1.0", "pay", order=7)
        await checking.ended()
        last = await bank_tools(bank, **unsafe)
        outcome = await last.outcome(grants.claim(owner.task_id, epoch=12), "1.0", "pay", order=7)
        for call in (lost, again):
            call.cancel()
    assert (outcome.status, outcome.detail, outcome.call_attempt) == (OutcomeStatus.SUCCEEDED, "HAPPENED", 3)
    assert [asked.path for asked in bank.asked] == ["/pay", f"/payments?key={bank.asked[0].key}"]
    assert not bank.asked[0].key.startswith(owner.task_id)
    assert await tools_database("select state, acts_elsewhere from calls") == [("FINISHED", True)]


async def test_drain_hands_a_settlement_over(bank_tools: StartBankTools, grants: Grants) -> None:
    """At once: a drain does not wait for a bank that gives no answer."""
    async with open_bank(*["500"] * 99) as bank:
        draining, other = await bank_tools(bank), await bank_tools(bank)
        owner = grants.claim()
        lost = draining.begin(owner, "1.0", "pay")
        await bank.until_asked(2)
        assert await draining.terminate() == 0
        bank.ends.clear()
        outcome = await other.outcome(owner, "1.0", "pay")
        lost.cancel()
    assert (outcome.content, outcome.call_attempt, len(bank.payments)) == ("receipt 1", 2, 1)


@pytest.mark.parametrize("killed", first([False, True]))
async def test_stopped_settlement_goes_on_after_the_stop(
    killed: bool, bank_tools: StartBankTools, grants: Grants, tools_database: Query
) -> None:
    """As the next attempt, with the same key, also at another replica: nobody has to look whether it happened."""
    async with open_bank(*["500"] * 99) as bank:
        tools = await bank_tools(bank)
        owner, since = grants.claim(), Timestamp()
        since.GetCurrentTime()
        cut = tools.begin(owner, "1.0", "pay")
        await bank.until_asked(2)
        stop = admin_pb.Stop(tool="pay", reason="r", epoch=1)
        await tools.stub.SetStops(stops_request(1, stop), timeout=CALL_SECONDS)
        assert await certainties(tools, since, owner.task_id) == ["MAY_HAVE_HAPPENED"]
        with pytest.raises(Unavailable) as refusal:
            await cut
        assert refusal.value.reason == "STOPPED"
        asked, began = len(bank.asked), await tools_database("select settling_since from calls")
        if killed:
            await tools.kill()
            tools = await bank_tools(bank)
        with pytest.raises(Unavailable):
            await tools.outcome(owner, "1.0", "pay")
        await tools.stub.SetStops(stops_request(2), timeout=CALL_SECONDS)
        assert len(bank.asked) == asked
        bank.ends.clear()
        outcome = await tools.outcome(owner, "1.0", "pay")
    assert (outcome.status, outcome.content, outcome.call_attempt) == (OutcomeStatus.SUCCEEDED, "receipt 1", 2)
    assert {one.key for one in bank.asked} == {f"{owner.task_id}/1.0"}
    assert len(bank.payments) == 1
    recorded = await tools_database("select state, settling_since, begun_before from calls")
    assert recorded == [("FINISHED", *began[0], True)]


@pytest.mark.parametrize("replicas", first([2, 1]))
async def test_newer_owner_gets_the_settlement_under_its_claim(
    replicas: int, bank_tools: StartBankTools, grants: Grants
) -> None:
    """At another replica and at the same one: the bank may refuse what an older claim sends."""
    async with open_bank(*["500"] * 99) as bank:
        *_, other = tools = [await bank_tools(bank) for _ in range(replicas)]
        owner = grants.claim()
        earlier = tools[0].begin(owner, "1.0", "pay")
        await bank.until_asked(2)
        newer = other.begin(grants.claim(owner.task_id, epoch=11), "1.0", "pay")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while bank.asked[-1].epoch != "11":
                await bank.until_asked(len(bank.asked) + 1)
        bank.ends.clear()
        outcome = await newer
        earlier.cancel()
    assert (outcome.content, outcome.call_attempt, len(bank.payments)) == ("receipt 1", 2, 1)
    epochs = [asked.epoch for asked in bank.asked]
    assert epochs == sorted(epochs)


async def test_end_of_the_task_ends_the_settlement(bank_tools: StartBankTools, grants: Grants) -> None:
    async with open_bank(*["500"] * 9) as bank:
        tools, owner = await bank_tools(bank), grants.claim()
        call = tools.begin(owner, "1.0", "pay")
        await bank.until_asked(2)
        (record,) = (await tools.fence(owner, close=True)).values()
        asked = len(bank.asked)
        assert record.state == tool_pb2.CALL_STATE_IN_DOUBT
        assert (await call).status is OutcomeStatus.IN_DOUBT
        listed = (await tools.stub.ListInDoubtCalls(admin_pb.ListInDoubtCallsRequest(), timeout=CALL_SECONDS)).calls
        assert [one.call.call_id for one in listed] == ["1.0"]
    assert (len(bank.asked), len(bank.payments)) == (asked, 1)


@pytest.mark.faults
async def test_callers_hear_that_a_call_is_settled(bank_tools: StartBankTools, grants: Grants) -> None:
    """Also those of another replica, and whoever reads the call log."""
    async with open_bank("500", "held") as bank:
        tools, other = await bank_tools(bank, timeout_seconds=CALL_SECONDS), await bank_tools(bank)
        owner = grants.claim()
        here = asyncio.create_task(kinds_of(tools, owner, asyncio.Event()))
        await bank.until_asked(2)
        log = admin_pb.ListCallsRequest(task_id=owner.task_id)
        (logged,) = (await tools.stub.ListCalls(log, timeout=CALL_SECONDS)).calls
        assert logged.HasField("settling_time")
        heard = asyncio.Event()
        elsewhere = asyncio.create_task(kinds_of(other, owner, heard))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await heard.wait()
        bank.released.set()
        assert await here == ["started", "settling", "outcome"]
        assert await elsewhere == ["started", "settling", "outcome"]


async def kinds_of(tools: ToolReplica, owner: Owner, heard: asyncio.Event) -> list[str]:
    """The different events of a call, in their order. `heard` is set when the call is being settled."""
    kinds: dict[str, None] = {}
    async for response in tools.stub.Execute(execute_request(owner, "1.0", "pay"), timeout=CALL_SECONDS):
        kinds[response.WhichOneof("event")] = None
        if response.HasField("settling"):
            heard.set()
    return list(kinds)
