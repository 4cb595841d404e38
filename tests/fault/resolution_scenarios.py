"""The same for the guards around people's words on calls in doubt, see mutation_scenarios.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from signal import SIGCONT

from tenure.domain.errors import TenureError
from tenure.domain.in_doubt import DidNotHappen, Resolution
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import tool_pb2
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tests.fault.mutation_bench import Arena
from tests.support.fix_tools import appear

GONE = DidNotHappen(runner_is_gone=True)


async def a_word_has_the_call_run_again(arena: Arena) -> None:
    owner = await arena.owner_with_a_call()
    async with arena.runner_lost(owner):
        await arena.wait_for_word(owner, 1)
    word = await arena.say(owner, 1, GONE)
    new = await arena.ledger.claim(owner.task.task_id, holder="worker-2")
    await arena.end(new, await arena.execute(new, word=word))


async def a_word_comes_for_another_attempt(arena: Arena) -> None:
    owner = await arena.owner_with_a_call()
    async with arena.runner_lost(owner, "tools.after_effect=kill9"):
        await arena.execute(owner, word=Resolution(2, GONE, "I looked", "olga"))


async def a_word_is_given_while_the_runner_is_only_frozen(arena: Arena) -> None:
    owner = await arena.owner_with_a_call()
    async with arena.runner_lost(owner, "tools.before_effect=freeze"):
        await arena.wait_for_word(owner, 1)
        with suppress(TenureError):
            await arena.say(owner, 1, DidNotHappen())


async def a_runner_wakes_up_while_its_call_is_run_again(arena: Arena) -> None:
    owner, sleeper = await arena.owner_with_a_call(), await arena.start_tools("tools.after_effect=freeze", alike=True)
    async with open_channel(sleeper.address) as channel:
        first = asyncio.create_task(arena.execute(owner, ToolServiceStub(channel)))
        await arena.stands(owner, tool_pb2.CALL_STATE_STARTED)
        await arena.execute(owner)
        await arena.wait_for_word(owner, 1)
        word = await arena.say(owner, 1, GONE)
        new = await arena.ledger.claim(owner.task.task_id, holder="worker-2")
        again = asyncio.create_task(arena.execute(new, word=word))
        await appear(arena.folder / "again")
        sleeper.signal(SIGCONT)
        with suppress(TenureError):
            await first
    (arena.folder / "go-on").touch()
    with suppress(TenureError):
        await arena.end(new, await again)


SCENARIOS: dict[str, Callable[[Arena], Awaitable[None]]] = {
    "word_is_another_attempt": a_word_has_the_call_run_again,
    "word_is_about_one_attempt": a_word_comes_for_another_attempt,
    "outcome_is_the_attempts": a_runner_wakes_up_while_its_call_is_run_again,
    "word_needs_proof": a_word_is_given_while_the_runner_is_only_frozen,
}
FAILPOINTS = {
    "outcome_is_the_attempts": {"tools": "tools.after_effect=touch({folder}/again)->wait({folder}/go-on)"},
}
