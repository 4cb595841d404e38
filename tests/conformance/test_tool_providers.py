"""A provider in Node.js behind the real tool service: what its table holds at the end is what happened."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tenure.domain.errors import Unavailable
from tenure.domain.tools import Outcome, OutcomeStatus
from tenure.v1 import tool_pb2, tool_service_pb2
from tenure.wire.tool import outcome_to_domain
from tests.support.fix_provider import StartProvider
from tests.support.fix_proxy import MakeProxy
from tests.support.fix_tools import SHORT_LIFE, Grants, StartTools, execute_request, listed_sources, offered
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS

DONE, FAILED, DOUBT = OutcomeStatus.SUCCEEDED, OutcomeStatus.FAILED, OutcomeStatus.IN_DOUBT
MOVE, COUNT, READ, SHIP = "stock__move_stock", "stock__count_stock", "stock__read_stock", "stock__ship"
LATE_MS = 3_600_000
"""An answer that never arrives."""


@pytest.fixture
async def behind(tool_service: StartTools, node_provider: StartProvider, tools_sections: Callable[..., Path]) -> Any:
    """A provider and a replica of the tool service that knows it."""

    async def start(
        provider: Any = None, *, failpoints: str = "", life: Any = MappingProxyType({}), **section: Any
    ) -> Any:
        provider = provider or await node_provider()
        section.setdefault("address", provider.address)
        config = tools_sections(providers={"stock": section})
        return provider, await tool_service(config_file=config, failpoints=failpoints, **life)

    return start


async def names(tools: Any, owner: Any) -> dict[str, int]:
    response = await tools.stub.ListTools(tool_service_pb2.ListToolsRequest(token=owner.token), timeout=CALL_SECONDS)
    return {tool.name: tool.effect_class for tool in response.tools if tool.name.startswith("stock")}


def keys_file(grants: Any, path: Path) -> Path:
    """As `tenure --json leases keys` prints them."""
    keys = json.loads(grants.verifying_keys_file.read_text())
    lines = [json.dumps({"key_id": one["key_id"], "public_key": one["public_key"]}) for one in keys["keys"]]
    path.write_text("\n".join(lines))
    return path


async def test_a_providers_tools_are_offered_to_its_tenants_only(behind: Any, grants: Grants) -> None:
    _, tools = await behind(tenants=["acme"], allow=["move_stock", "ship"], effects={"ship": "KEYED"})
    acme, other = grants.claim(tenant="acme"), grants.claim(tenant="other")
    assert await names(tools, acme) == {MOVE: tool_pb2.EFFECT_CLASS_KEYED, SHIP: tool_pb2.EFFECT_CLASS_KEYED}
    assert await names(tools, other) == {}
    tools_of_acme = await offered(tools, "acme")
    listed = {tool.definition.name: (tool.source, tool.definition.effect_class) for tool in tools_of_acme}
    keyed = ("stock", tool_pb2.EFFECT_CLASS_KEYED)
    assert (listed[MOVE], listed[SHIP], listed["read_file"][0]) == (keyed, keyed, "built-in")
    assert {MOVE, SHIP}.isdisjoint(tool.definition.name for tool in await offered(tools, "other"))
    refused = await tools.outcome(other, "1.0", MOVE, item="tea", delta=1)
    assert refused.status is OutcomeStatus.INVALID_ARGUMENTS
    assert refused.content.startswith(f"There is no tool named '{MOVE}'")


async def test_a_provider_gets_key_epoch_and_a_verifiable_token(
    behind: Any, node_provider: StartProvider, grants: Grants, tmp_path: Path
) -> None:
    provider = await node_provider(keys=keys_file(grants, tmp_path / "keys.jsonl"))
    _, tools = await behind(provider)
    owner = grants.claim(epoch=2**60 + 1)  # no double holds it
    outcome = await tools.outcome(owner, "1.0", MOVE, item="tea", delta=3)
    assert (outcome.status, outcome.content) == (DONE, "There are 3 of tea.")
    assert provider.moves() == [(f"{owner.task_id}/1.0", 2**60 + 1)]


async def test_it_refuses_a_token_that_is_none_of_ours(
    behind: Any, node_provider: StartProvider, grants: Grants, tmp_path: Path
) -> None:
    forged = tmp_path / "keys.jsonl"
    forged.write_text(json.dumps({"key_id": "other", "public_key": base64.b64encode(b"x" * 32).decode()}))
    provider = await node_provider(keys=forged)
    _, tools = await behind(provider)
    outcome = await tools.outcome(grants.claim(), "1.0", MOVE, item="tea", delta=3)
    assert (outcome.status, outcome.detail) == (FAILED, "UNAUTHENTICATED")
    assert "Nothing was done: INVALID_TOKEN" in outcome.content
    assert provider.moves() == []


@pytest.mark.nightly
async def test_rerun_call_has_one_effect(behind: Any, grants: Grants) -> None:
    provider, dying = await behind(failpoints="tools.after_effect=kill9")
    owner = grants.claim(epoch=10)
    with pytest.raises(Unavailable):
        await dying.outcome(owner, "1.0", MOVE, item="tea", delta=3)
    await dying.ended()
    assert len(provider.moves()) == 1
    _, tools = await behind(provider)
    again = await tools.outcome(grants.claim(owner.task_id, epoch=11), "1.0", MOVE, item="tea", delta=3)
    assert (again.status, again.content, again.call_attempt) == (DONE, "There are 3 of tea.", 2)
    assert provider.moves() == [(f"{owner.task_id}/1.0", 10)]


async def test_the_providers_table_refuses_calls_after_a_takeover(
    behind: Any, grants: Grants, tcp_proxy: MakeProxy
) -> None:
    """The old runner is frozen, and its call is still on the network when the new one has written."""
    provider, new = await behind()
    host, _, port = provider.address.rpartition(":")
    way = await tcp_proxy(host, int(port))
    _, old = await behind(provider, address=way.address, life=SHORT_LIFE)
    owner = grants.claim(epoch=10)
    way.deaf()
    old.begin(owner, "1.0", COUNT, item="tea", amount=1)
    await old.started(owner)
    await old.outcome(owner, "1.1", "list_files")  # meanwhile the call before it is on its way, too
    old.freeze()
    taken_over = grants.claim(owner.task_id, epoch=11)
    for call_id, amount in (("1.0", 1), ("2.0", 2)):
        assert (await new.outcome(taken_over, call_id, COUNT, item="tea", amount=amount)).status is DONE
    way.observe()
    late = await provider.tells(lambda line: line.get("epoch") == "10")
    assert late["status"] == "PROVIDER_STATUS_STALE_EPOCH"
    assert provider.rows("select amount from stock") == [(2,)]


async def test_provider_refusal_by_epoch_has_its_detail(behind: Any, grants: Grants) -> None:
    provider, tools = await behind()
    owner = grants.claim(epoch=10)
    provider.rows("insert into fences (task, epoch) values (?, 11)", owner.task_id)
    outcome = await tools.outcome(owner, "1.0", SHIP, item="tea", quantity=1)
    assert (outcome.status, outcome.detail) == (FAILED, "STALE_EPOCH")
    assert "it has seen a newer claim of this task. Nothing was done" in outcome.content
    assert provider.shipments() == 0


@pytest.mark.faults
async def test_repeatable_call_is_rerun_after_the_provider_died(
    behind: Any, node_provider: StartProvider, grants: Grants
) -> None:
    provider = await node_provider(answer_after_ms=LATE_MS)
    _, tools = await behind(provider, timeout_seconds=CALL_SECONDS)
    owner = grants.claim()
    calls = [
        tools.begin(owner, "1.0", MOVE, item="tea", delta=3),
        tools.begin(owner, "1.1", COUNT, item="milk", amount=2),
        tools.begin(owner, "1.2", READ, item="sugar"),
    ]
    for tool in (MOVE, COUNT, READ):
        await provider.wrote(tool.removeprefix("stock__"))
    await provider.kill()
    await provider.start()
    outcomes = await asyncio.gather(*calls)
    assert [outcome.content for outcome in outcomes] == [
        "There are 3 of tea.",
        "There are 2 of milk.",
        "There are 0 of sugar.",
    ]
    assert {(outcome.status, outcome.call_attempt) for outcome in outcomes} == {(DONE, 1)}
    assert len(provider.moves()) == 1


async def test_an_unsafe_call_is_in_doubt_after_the_provider_died(
    behind: Any, node_provider: StartProvider, grants: Grants
) -> None:
    provider = await node_provider(answer_after_ms=LATE_MS)
    _, tools = await behind(provider)
    owner = grants.claim()
    call = tools.begin(owner, "1.0", SHIP, item="tea", quantity=1)
    await provider.wrote("ship")
    await provider.kill()
    await provider.start()
    assert (await call).status is DOUBT
    assert (await tools.fence(owner))["1.0"].state == tool_pb2.CALL_STATE_IN_DOUBT
    assert (await tools.outcome(owner, "1.0", SHIP, item="tea", quantity=1)).status is DOUBT
    assert provider.shipments() == 1


@pytest.mark.nightly
async def test_shorter_caller_timeout_is_kept(behind: Any, node_provider: StartProvider, grants: Grants) -> None:
    provider = await node_provider(answer_after_ms=LATE_MS)
    _, tools = await behind(provider, settle={MOVE.removeprefix("stock__"): {"for": 0}})
    owner = grants.claim()

    async def ends(call_id: str, tool: str, **arguments: object) -> Outcome:
        request = execute_request(owner, call_id, tool, json.dumps(arguments))
        request.timeout.seconds = 4
        events = [event async for event in tools.stub.Execute(request, timeout=CALL_SECONDS)]
        return outcome_to_domain(events[-1].outcome)

    moved, shipped = await asyncio.gather(
        ends("1.0", MOVE, item="tea", delta=1), ends("1.1", SHIP, item="tea", quantity=1)
    )
    assert moved.status is DOUBT
    assert "no answer within 4 s" in moved.content
    assert shipped.status is DOUBT


async def stands(tools: Any, linked: bool) -> Any:
    """Returns the source of the provider once it is linked, or is not."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (source := (await listed_sources(tools))["stock"]).linked is not linked:
            await asyncio.sleep(0.05)
        return source


@pytest.mark.faults
async def test_an_absent_provider_is_reported_and_found_again(behind: Any, grants: Grants) -> None:
    provider, tools = await behind(connect_seconds=0.3, bearer_token="hush-hush-hush", tenants=["default"])
    owner = grants.claim()
    linked = await stands(tools, linked=True)
    assert (linked.kind, linked.tools) == (tool_pb2.TOOL_SOURCE_KIND_PROVIDER, 4)
    await provider.kill()
    lost = await stands(tools, linked=False)
    assert (lost.tools, lost.last_error_time.seconds >= lost.change_time.seconds > 0) == (4, True)
    assert lost.last_error
    assert "stock" not in await listed_sources(tools, tenant="other")
    away = await tools.outcome(owner, "1.0", SHIP, item="tea", quantity=1)
    assert (away.status, away.detail) == (FAILED, "UNREACHABLE")
    assert away.content.endswith("Nothing was done.")
    await provider.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        for attempt in range(1, 1000):
            if (await tools.outcome(owner, f"2.{attempt}", SHIP, item="tea", quantity=1)).status is DONE:
                break
    assert provider.shipments() == 1
    back = await stands(tools, linked=True)
    assert back.last_error  # what it was stays to be seen
    assert back.change_time.ToNanoseconds() >= back.last_error_time.ToNanoseconds()


@pytest.mark.faults
async def test_a_provider_that_comes_later_is_waited_for(
    behind: Any, node_provider: StartProvider, grants: Grants
) -> None:
    provider = await node_provider()
    await provider.kill()
    _, tools = await behind(provider, connect_seconds=0.3)
    owner = grants.claim()
    with pytest.raises(Unavailable, match="not connected yet"):
        await tools.outcome(owner, "1.0", MOVE, item="tea", delta=3)
    await provider.start()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while MOVE not in await names(tools, owner):
            await asyncio.sleep(0.05)
    assert (await tools.outcome(owner, "1.0", MOVE, item="tea", delta=3)).status is DONE


@pytest.mark.faults
async def test_started_calls_without_their_tools_are_in_doubt(
    behind: Any, tool_service: StartTools, node_provider: StartProvider, grants: Grants
) -> None:
    """The next replica's config has no such provider. A person has the KEYED call repeated when it is back."""
    provider = await node_provider(answer_after_ms=LATE_MS)
    _, dying = await behind(provider)
    owner = grants.claim()
    called = {"1.0": (MOVE, {"item": "tea", "delta": 1}), "1.1": (SHIP, {"item": "tea", "quantity": 1})}
    for call_id, (tool, arguments) in called.items():
        dying.begin(owner, call_id, tool, **arguments)
        await provider.wrote(tool.removeprefix("stock__"))
    await dying.kill()
    without = await tool_service()
    for _ in range(2):
        for call_id, (tool, arguments) in called.items():
            assert (await without.outcome(owner, call_id, tool, **arguments)).status is DOUBT
    states = {call.state for call in (await without.fence(owner)).values()}
    assert states == {tool_pb2.CALL_STATE_IN_DOUBT}
    await provider.kill()
    await provider.start()
    _, tools = await behind(provider)
    request = execute_request(owner, "1.0", MOVE, json.dumps(called["1.0"][1]))
    request.resolution.CopyFrom(tool_pb2.CallResolution(call_attempt=1, reason="looked", actor="ada"))
    request.resolution.decision.did_not_happen.runner_is_gone = True
    *_, last = [event async for event in tools.stub.Execute(request, timeout=CALL_SECONDS)]
    assert outcome_to_domain(last.outcome).status is DONE
    assert provider.moves() == [(f"{owner.task_id}/1.0", owner.epoch)]
