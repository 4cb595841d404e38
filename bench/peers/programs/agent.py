"""The agent of every peer: ten steps, each with one tool effect and a durable result; and its link to the bench.

The effect is one line that the tool appends to a file: task, step, process and time. With a fault, the first process
that comes to the fault's step writes one line with itself and the time into a file that only it can create, and then
freezes or kills itself, just before its effect.

A program reads its work from standard input, one JSON object a line, and prints `PEER ready` and `PEER done`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

STEPS: Final = 10
RESULT_BYTES: Final = 2400
FAULT_STEP: Final = 5
EFFECTS: Final = "effects"
VICTIM: Final = "victim"
SAYS: Final = "PEER "
_SIGNALS: Final = {"freeze": signal.SIGSTOP, "kill": signal.SIGKILL}


@dataclass(frozen=True, slots=True)
class Options:
    """`store`: the URL or address of the engine's store. `port`: where the program serves, if it does.

    `lease_seconds`: how long the engine waits for a worker that is silent; 0 for its default. `at_once`: tasks at once.
    """

    store: str
    folder: Path
    port: int
    at_once: int
    fault: str
    lease_seconds: int


@dataclass(frozen=True, slots=True)
class Work:
    """Tasks to run. `is_resumed`: another process began them."""

    tasks: list[str]
    is_resumed: bool


def read_options() -> Options:
    """Returns the options of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--fault", choices=["", *_SIGNALS], default="")
    parser.add_argument("--lease-seconds", type=int, default=0)
    return Options(**vars(parser.parse_args()))


class Tool:
    """Makes the effects of the agent's steps."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._file = os.open(options.folder / EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def effect(self, task: str, step: int) -> str:
        """Makes the effect of a step. Returns the step's result, of 2,400 bytes."""
        if self._options.fault and step == FAULT_STEP and self._is_victim():
            # Sent to this thread: one that is sent to the process may stop it only after the effect.
            signal.pthread_kill(threading.get_ident(), _SIGNALS[self._options.fault])
        os.write(self._file, f"{task} {step} {os.getpid()} {time.monotonic()}\n".encode())
        return result_text()

    def _is_victim(self) -> bool:
        try:
            victim = os.open(self._options.folder / VICTIM, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return False
        os.write(victim, f"{os.getpid()} {time.monotonic()}\n".encode())
        os.close(victim)
        return True


def result_text() -> str:
    """Returns a new random text of 2,400 bytes, which no store makes much smaller."""
    return os.urandom(RESULT_BYTES // 2).hex()


def serve(run: Callable[[Work], None]) -> None:
    """Runs the work of each line of standard input, until it ends."""
    say("ready")
    for line in sys.stdin:
        run(_work(line))
        say("done")


async def serve_async(run: Callable[[Work], Awaitable[None]]) -> None:
    """Does the same in an event loop."""
    say("ready")
    while line := await asyncio.to_thread(sys.stdin.readline):
        await run(_work(line))
        say("done")


def in_threads(run: Callable[[str], object], tasks: list[str], at_once: int) -> None:
    """Runs tasks in threads, and raises what they raise."""
    with ThreadPoolExecutor(at_once) as threads:
        for _ in threads.map(run, tasks):
            pass


async def in_loop(run: Callable[[str], Awaitable[object]], tasks: list[str], at_once: int) -> None:
    """Runs tasks in the event loop, and raises what they raise."""
    slots = asyncio.Semaphore(at_once)

    async def one(task: str) -> None:
        async with slots:
            await run(task)

    await asyncio.gather(*(one(task) for task in tasks))


def say(word: str) -> None:
    print(f"{SAYS}{word}", flush=True)


def _work(line: str) -> Work:
    fields: dict[str, Any] = json.loads(line)
    return Work(**fields)
