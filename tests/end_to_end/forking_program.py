"""A program that forks before and after its first call of a SyncClient, as gunicorn --preload and multiprocessing do.

It prints one line of JSON: what its children ended with, and the sequences of a stream that was open in a thread.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Final

from tenure import Client, Event, SyncClient, UsedBeforeFork
from tenure.v1.task_service_pb2 import ListTasksRequest

FORKS: Final = 2 * int(os.environ.get("TENURE_EXAMPLES", "1"))
CLIENT: Final = SyncClient()


def tasks(_: int = 0) -> int:
    """Returns how many tasks the client lists."""
    return len(CLIENT.tasks_page().tasks)


def refused(call: Callable[[], object]) -> bool:
    """Returns whether this process may not call Tenure."""
    try:
        call()
    except UsedBeforeFork:
        return True
    return False


def all_refused(stream: Iterator[Event]) -> bool:
    """Returns whether all ways to call Tenure are refused, and closes what can be closed."""
    with SyncClient() as another:
        ways: list[Callable[[], object]] = [
            tasks,
            another.tasks_page,
            lambda: next(stream),
            lambda: asyncio.run(asynchronous()),
        ]
        is_refused = all(refused(way) for way in ways)
    CLIENT.close()
    return is_refused


async def asynchronous() -> None:
    """Calls Tenure with another client."""
    async with Client() as client:
        await client.tasks_page()


async def child_of_a_client() -> int:
    """Returns the exit status of a child that has the stubs and the client of its parent's event loop."""
    async with Client() as client:
        await client.tasks_page()
        stubs = client.raw
        process_id = os.fork()
        if process_id == 0:
            try:
                await stubs.tasks.ListTasks(ListTasksRequest())
            except UsedBeforeFork:
                await client.close()
                os._exit(0)
            os._exit(1)
        return os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])


def forked(is_right: Callable[[], object]) -> int:
    """Returns the exit status of a child that ends as the usual program does."""
    process_id = os.fork()
    if process_id == 0:
        sys.exit(0 if is_right() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])


def call_until(has_ended: threading.Event) -> None:
    """Calls without a pause, so that calls run during each fork; no longer, for that takes all cores."""
    while not has_ended.is_set():
        tasks()


def main() -> None:
    """Forks before its first call, and while calls run."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        before = pool.map(tasks, range(4))
    task = CLIENT.submit("follow me", model="sim-e2e-paced")
    stream = task.events()
    seen = [next(stream).sequence]
    has_ended = threading.Event()
    callers = [threading.Thread(target=call_until, args=(has_ended,)) for _ in range(2)]
    for caller in callers:
        caller.start()
    statuses = [forked(lambda: all_refused(stream)) for _ in range(FORKS)]
    statuses += [asyncio.run(child_of_a_client()) for _ in range(FORKS)]
    has_ended.set()
    for caller in callers:
        caller.join()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        spawned = pool.map(tasks, [0])
    seen += [event.sequence for event in stream if event.sequence is not None]
    result = {"before": before, "statuses": statuses, "spawned": spawned, "seen": seen}
    sys.stdout.write(json.dumps({**result, "entries": len(list(task.entries()))}))


if __name__ == "__main__":
    main()
