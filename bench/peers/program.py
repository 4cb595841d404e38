"""A program of a peer as a child process, and the effects that its agent made."""

from __future__ import annotations

import asyncio
import json
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench.peers.programs.agent import EFFECTS, SAYS, STEPS, VICTIM

ROOT: Final = Path(__file__).parents[2]
READY_SECONDS: Final = 90.0
RUN_SECONDS: Final = 300.0
END_SECONDS: Final = 5.0
LOG_LINES: Final = 12


class EngineFailedError(Exception):
    """An engine did not do its work. The message says what it did not do, and has the end of its log."""


@dataclass(frozen=True, slots=True)
class Effect:
    """An effect of a tool. `at`: monotonic seconds."""

    task: str
    step: int
    pid: int
    at: float


@dataclass(frozen=True, slots=True)
class Victim:
    """The process that a fault stopped. `at`: monotonic seconds, just before the signal."""

    pid: int
    at: float


@dataclass(slots=True)
class Program:
    """A program of a peer. `folder`: its effects and its log."""

    python: Path
    peer: str
    folder: Path
    arguments: Sequence[str]
    _process: Process | None = field(default=None)

    @property
    def pid(self) -> int:
        assert self._process is not None, "it was started"
        return self._process.pid

    async def start(self) -> None:
        """Starts the program and waits until it can run tasks. Raises EngineFailedError."""
        command = [str(self.python), "-m", f"bench.peers.programs.{self.peer}_agent", "--folder", str(self.folder)]
        environment = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.folder), "PYTHONUNBUFFERED": "1"}
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, *self.arguments, stdin=PIPE, stdout=PIPE, stderr=log, cwd=ROOT, env=environment
            )
        await self._until("ready", READY_SECONDS)

    def submit(self, tasks: Sequence[str], *, is_resumed: bool = False) -> None:
        """Gives tasks to the program, and does not wait."""
        assert self._process is not None, "it was started"
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(json.dumps({"tasks": list(tasks), "is_resumed": is_resumed}).encode() + b"\n")

    async def run(self, tasks: Sequence[str]) -> None:
        """Runs tasks to their end. Raises EngineFailedError."""
        self.submit(tasks)
        await self._until("done", RUN_SECONDS)

    async def stop(self) -> None:
        """Ends the program: it ends with its input, or is killed."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        assert process.stdin is not None, "it is a pipe"
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            with suppress(ProcessLookupError):  # it may have ended by now
                process.kill()
            await process.wait()

    async def _until(self, word: str, seconds: float) -> None:
        assert self._process is not None, "it was started"
        assert self._process.stdout is not None, "it is a pipe"
        try:
            async with asyncio.timeout(seconds):
                async for line in self._process.stdout:
                    if line.decode().strip() == f"{SAYS}{word}":
                        return
        except TimeoutError:
            raise EngineFailedError(f"{self.peer} was not {word} within {seconds:g} s.\n{self._log_end()}") from None
        raise EngineFailedError(f"The program of {self.peer} ended before it was {word}.\n{self._log_end()}")

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _log_end(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES:])


def read_effects(folder: Path) -> list[Effect]:
    """Returns the effects so far, in their order."""
    file = folder / EFFECTS
    if not file.exists():
        return []
    lines = (line.split() for line in file.read_text().splitlines())
    return [Effect(task, int(step), int(pid), float(at)) for task, step, pid, at in lines]


def read_victim(folder: Path) -> Victim | None:
    """Returns the process that the fault stopped, or None before."""
    file = folder / VICTIM
    text = file.read_text() if file.exists() else ""
    if not text.endswith("\n"):
        return None
    pid, at = text.split()
    return Victim(int(pid), float(at))


def step_seconds(effects: Sequence[Effect], tasks: Sequence[str]) -> list[float]:
    """Returns the seconds from each effect of a task to its next one. Raises EngineFailedError for missing effects.

    So long a step takes: its result becomes durable, and the next step starts.
    """
    times: dict[str, list[float]] = {task: [] for task in tasks}
    for effect in effects:
        if effect.task in times:
            times[effect.task].append(effect.at)
    wrong = [task for task, made in times.items() if len(made) != STEPS]
    if wrong:
        raise EngineFailedError(
            f"{len(wrong)} of {len(times)} tasks did not make {STEPS} effects, such as {wrong[0]}: {times[wrong[0]]}"
        )
    return [later - earlier for made in times.values() for earlier, later in pairwise(made)]
