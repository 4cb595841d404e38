"""The public client while the gateway dies, and while the network loses what it says."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any, Final

import pytest

from tenure import Client, Event, LiveTextEvent, SyncClient, TaskState
from tests.end_to_end.installation import Installation
from tests.support.fix_proxy import Lost, MakeProxy, TcpProxy
from tests.support.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.server
ANSWER: Final = "word " * 400


async def proxied(install: Installation, tcp_proxy: MakeProxy) -> TcpProxy:
    host, _, port = install.stack.gateway_address.rpartition(":")
    return await tcp_proxy(host, int(port))


def sequences(events: list[Event]) -> list[int]:
    return [event.sequence for event in events if event.sequence is not None]


async def test_each_event_comes_once_though_the_gateway_dies(own_installation: Installation) -> None:
    """Both clients watch while the gateway is killed twice: no gap, no repeat, and the same entries."""
    install = own_installation
    address, gateway = install.stack.gateway_address, install.stack.services["gateway"]
    async with Client(address) as client:
        with SyncClient(address) as sync_client:
            task = await client.submit(uuid.uuid4().hex, model="sim-e2e-paced")
            at_step: dict[int, asyncio.Event] = {2: asyncio.Event(), 5: asyncio.Event()}
            seen: list[Event] = []

            async def watch() -> None:
                async for event in task.events():
                    seen.append(event)
                    if event.kind == "tool_outcome" and event.step in at_step:
                        at_step[event.step].set()

            def watch_sync() -> list[Event]:
                return list(sync_client.get(task.id).events())

            async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
                group.create_task(watch())
                synchronous = group.create_task(asyncio.to_thread(watch_sync))
                for reached in at_step.values():
                    await reached.wait()
                    gateway.kill()
                    await gateway.restart()
            assert (await task.wait()).state is TaskState.SUCCEEDED
            entries = [event async for event in task.entries()]
    assert sequences(entries) == list(range(1, len(entries) + 1))
    for events in (seen, synchronous.result()):
        assert [event for event in events if event.sequence is not None] == entries


@pytest.mark.faults
async def test_a_submit_whose_answer_is_lost_makes_one_task(installation: Installation, tcp_proxy: MakeProxy) -> None:
    label = {"run": uuid.uuid4().hex}
    proxy = await proxied(installation, tcp_proxy)
    async with Client(installation.stack.gateway_address) as direct, Client(proxy.address) as client:
        sync_client = SyncClient(proxy.address)

        async def submit() -> str:
            return (await client.submit("x", queue="none", labels=label)).id

        def submit_sync() -> str:
            with sync_client:
                return sync_client.submit("x", queue="none", labels=label).id

        await client.tools()
        await asyncio.to_thread(sync_client.tools)  # now both are connected
        ways: tuple[Any, ...] = (submit, lambda: asyncio.to_thread(submit_sync))
        for number, submitted in enumerate(ways, start=1):
            proxy.deaf(Lost.ANSWERS)
            submitting = asyncio.create_task(submitted())
            async with asyncio.timeout(PATIENCE_SECONDS):
                while len(tasks := [task async for task in direct.tasks(labels=label)]) < number:
                    await asyncio.sleep(0.02)  # the gateway has the request, and its answer does not arrive
            assert not submitting.done()
            await proxy.reset()
            proxy.observe()
            assert await asyncio.wait_for(submitting, PATIENCE_SECONDS) == tasks[0].id
            assert len([task async for task in direct.tasks(labels=label)]) == number


@pytest.mark.faults
async def test_live_text_continues_where_it_broke(installation: Installation, tcp_proxy: MakeProxy) -> None:
    """A resumed stream repeats the text of the call in flight: the client does not pass it on twice."""
    proxy = await proxied(installation, tcp_proxy)
    async with Client(proxy.address) as client:
        task = await client.submit("x", model="sim-e2e-slow-answer")
        text, breaks, resumed = "", 0, 0
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for event in task.events():
                if not isinstance(event, LiveTextEvent):
                    continue
                assert (event.offset, event.replaces, event.skipped) == (len(text), False, False)
                text += event.text
                resumed += breaks > 0
                if breaks == 0 and len(text) >= 15:
                    breaks += 1
                    await proxy.reset()
                if resumed > 3:
                    break
        assert ANSWER.startswith(text)
        await task.cancel()


@pytest.mark.faults
async def test_a_wait_for_a_result_outlives_the_network(installation: Installation, tcp_proxy: MakeProxy) -> None:
    proxy = await proxied(installation, tcp_proxy)
    async with Client(proxy.address) as client:
        task: Any = await client.submit("x", model="sim-slow")
        waiting = asyncio.create_task(task.result())
        async for event in task.events():
            if event.kind == "model_attempt":
                break
        await proxy.stop()
        await asyncio.sleep(0.3)
        assert not waiting.done()
        await proxy.start()
        assert await asyncio.wait_for(waiting, PATIENCE_SECONDS)
