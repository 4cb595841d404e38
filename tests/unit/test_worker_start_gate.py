"""The gate before the start of a task: a burst of grants must leave the event loop time for renewals."""

from __future__ import annotations

import asyncio
import time

from services.worker.start_gate import TOGETHER, StartGate

TASKS = 20 * TOGETHER
WORK_SECONDS = 0.005


async def _start(gate: StartGate, started: list[int], number: int) -> None:
    await gate.wait_turn()
    started.append(number)
    for _ in range(3):  # as an Open, a reservation and a model call do: processor time, then a round of the loop
        time.sleep(WORK_SECONDS)
        await asyncio.sleep(0)


async def test_a_burst_starts_few_tasks_in_a_round_of_the_loop() -> None:
    gate, started = StartGate(), list[int]()
    starting = asyncio.gather(*(_start(gate, started, number) for number in range(TASKS)))
    most, before = 0, 0
    while not starting.done():
        await asyncio.sleep(0)
        most, before = max(most, len(started) - before), len(started)
    assert started == list(range(TASKS))  # in the order of the grants
    assert most <= 2 * TOGETHER


async def test_a_busy_loop_starts_its_tasks_too() -> None:
    gate, started = StartGate(), list[int]()

    async def keep_busy() -> None:
        while True:
            time.sleep(0.1)  # never prompt
            await asyncio.sleep(0)

    busy = asyncio.create_task(keep_busy())
    async with asyncio.timeout(60):
        await asyncio.gather(*(_start(gate, started, number) for number in range(3 * TOGETHER)))
    busy.cancel()


async def test_leaving_task_starts_the_next() -> None:
    gate, started = StartGate(), list[int]()
    tasks = [asyncio.create_task(_start(gate, started, number)) for number in range(3 * TOGETHER)]
    await asyncio.sleep(0)
    for task in tasks[TOGETHER : 2 * TOGETHER]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert started[-TOGETHER:] == list(range(2 * TOGETHER, 3 * TOGETHER))
