"""A task calls a tool of a backend in Node.js: whatever dies on the way, the backend's own table shows it once."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tenure.domain.in_doubt import Happened
from tenure.v1 import admin_service_pb2, task_pb2, tool_pb2
from tenure.wire.tool import decision_to_wire
from tests.end_to_end.installation import Installation, check_whole
from tests.support.fix_provider import NodeProvider, StartProvider
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
async def provider(own_installation: Installation, node_provider: StartProvider, tmp_path: Path) -> NodeProvider:
    """It verifies tokens with the keys that the installation publishes."""
    lines = [json.dumps(key) for key in json.loads(own_installation.stack.layout.verifying_keys.read_text())["keys"]]
    keys = tmp_path / "keys.jsonl"
    keys.write_text("\n".join(lines))
    return await node_provider(keys=keys)


@pytest.fixture
async def config(
    own_installation: Installation, provider: NodeProvider, tmp_path: Path
) -> AsyncIterator[dict[str, str]]:
    """For a tool service that knows the provider. Afterwards it is gone, and started again without it."""
    path = tmp_path / "tools.yaml"
    path.write_text("providers: {stock: {address: '${ADDRESS}'}}")
    yield {"TENURE_TOOLS_CONFIG_FILE": str(path), "ADDRESS": provider.address}
    own_installation.stack.services["tools"].kill()


async def test_a_killed_tool_service_has_its_effect_once(
    own_installation: Installation, provider: NodeProvider, config: dict[str, str]
) -> None:
    tools = own_installation.stack.services["tools"]
    await tools.drain()
    tools.start({**config, "TENURE_FAILPOINTS": "tools.after_effect=1#kill9"})
    await tools.wait_ready()
    item = uuid.uuid4().hex
    task_id = await own_installation.submit("sim-e2e-provider", item)
    await own_installation.died(tools)
    assert provider.rows("select amount from stock where item = ?", item) == [(3,)]
    tools.start(config)
    await tools.wait_ready()
    task = await own_installation.ended(task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
    entries = await own_installation.entries(task_id)
    check_whole(entries)
    (outcome,) = [entry.body.tool_outcome.outcome for entry in entries if entry.body.HasField("tool_outcome")]
    assert (outcome.status, outcome.call_attempt) == (tool_pb2.OUTCOME_STATUS_SUCCEEDED, 2)
    assert outcome.content == f"There are 3 of {item}."
    assert provider.rows("select amount from stock where item = ?", item) == [(3,)]
    assert [key.partition("/")[0] for key, _ in provider.moves()] == [task_id]


@pytest.mark.faults
async def test_keyed_call_of_a_provider_that_is_away_is_settled(
    own_installation: Installation, provider: NodeProvider, config: dict[str, str]
) -> None:
    """It has moved the stock, and dies with the answer; the model reads the answer when the provider is back."""
    path = Path(config["TENURE_TOOLS_CONFIG_FILE"])
    path.write_text("providers: {stock: {address: '${ADDRESS}', timeout_seconds: 4, settle: {move_stock: {for: 1h}}}}")
    tools = own_installation.stack.services["tools"]
    await provider.kill()
    await provider.start(answer_after_ms=3_600_000)
    await tools.drain()
    tools.start(config)
    await tools.wait_ready()
    item = uuid.uuid4().hex
    task_id = await own_installation.submit("sim-e2e-provider", item)
    await provider.wrote("move_stock")
    await provider.kill()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "Tenure settles it" not in " ".join((await own_installation.client.explain(task_id)).lines):
            await asyncio.sleep(0.2)
    await provider.start()
    task = await own_installation.ended(task_id)
    assert task.state == task_pb2.TASK_STATE_SUCCEEDED, f"{task.reason}: {task.message}"
    outcomes = [
        entry.body.tool_outcome.outcome
        for entry in await own_installation.entries(task_id)
        if entry.body.HasField("tool_outcome")
    ]
    assert [outcome.content for outcome in outcomes] == [f"There are 3 of {item}."]
    assert provider.rows("select amount from stock where item = ?", item) == [(3,)]


@pytest.mark.faults
async def test_a_provider_killed_after_an_unsafe_effect_needs_a_person(
    own_installation: Installation, provider: NodeProvider, config: dict[str, str]
) -> None:
    tools = own_installation.stack.services["tools"]
    await provider.kill()
    await provider.start(answer_after_ms=3_600_000)
    await tools.drain()
    tools.start(config)
    await tools.wait_ready()
    task_id = await own_installation.submit("sim-e2e-provider-unsafe", uuid.uuid4().hex)
    await provider.wrote("ship")
    await provider.kill()
    await provider.start()
    assert (await own_installation.in_state(task_id, "WAITING_USER")).reason == "TOOL_IN_DOUBT"
    [doubt] = [one.call async for one in own_installation.client.in_doubt(task_id)]
    assert doubt.note.startswith("The provider stock was sent the call, and its answer was lost")
    await own_installation.client.admin.ResolveInDoubtCall(
        admin_service_pb2.ResolveInDoubtCallRequest(
            task_id=task_id,
            call_id=doubt.call_id,
            call_attempt=doubt.call_attempt,
            decision=decision_to_wire(Happened("It is on its way.")),
            reason="the lorry was seen",
        )
    )
    assert (await own_installation.ended(task_id)).state == task_pb2.TASK_STATE_SUCCEEDED
    check_whole(await own_installation.entries(task_id))
    assert provider.shipments() == 1
