"""Owners that write what they like: answers are typed, and whatever they wrote, their tasks can be ended and go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fuzz.hostile_owner import HostileOwner, ends_and_goes_on
from tests.fuzz.profile import examples
from tests.fuzz.world import World

pytestmark = [
    pytest.mark.server,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(3600),
    pytest.mark.faults,
]


async def test_a_task_of_a_hostile_owner_ends_and_continues(world: World) -> None:
    loop, left = asyncio.get_running_loop(), list[HostileOwner]()
    chosen = settings(examples(12), stateful_step_count=12)
    machine: Any = lambda: HostileOwner(world, loop, left)  # noqa: E731  a factory will do as a class does
    await asyncio.to_thread(run_state_machine_as_test, machine, settings=chosen)
    world.check_processes()
    failures = await asyncio.gather(*(ends_and_goes_on(world, one) for one in left), return_exceptions=True)
    wrong = [str(one) for one in failures if one is not None]
    assert not wrong, f"{len(wrong)} of {len(left)} tasks:\n" + "\n\n".join(wrong[:5])
    print(world.tally.told())  # noqa: T201  pytest shows it with -s
