"""The load of the section scale: its model, its tasks, and the people who answer them."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from tenure.client import Client
from tenure.domain.errors import TryLater, WrongState
from tenure.runtime.postgres import Pool
from tenure.runtime.postgres import connection as pool_connection
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api

PAIRS: Final = 30
ANSWER_CHARACTERS: Final = 2400
CALLS_AT_ONCE: Final = 8
ANSWERS_A_POLL: Final = 500
POLL_SECONDS: Final = 1.0
FIRST_TOKEN_SHARE: Final = 0.1
_DUE: Final = """
select task_id::text, wait from tasks
 where wait_deadline_at is not null and waiting_since < now() - make_interval(secs => %b::float8)
 order by wait_deadline_at limit %b::int
"""


@dataclass(frozen=True, slots=True)
class Mix:
    """The seconds of the parts of a turn: the model's answer (one of several), a tool, and a person."""

    answers: tuple[float, ...]
    tool: float
    person: float

    @property
    def step_seconds(self) -> float:
        """The mean time of a step, which is an answer with the tool or the person after it."""
        return sum(self.answers) / len(self.answers) + (self.tool + self.person) / 2

    def scenario_files(self, folder: Path) -> tuple[Path, ...]:
        """Writes the scenarios: for each duration of an answer one that begins with a tool and one with a person."""
        folder.mkdir(parents=True)
        files = []
        for number, seconds in enumerate(self.answers):
            turns = [self._turn(seconds, self._tool_call()), self._turn(seconds, _QUESTION)]
            for name, pair in (("tool", turns), ("person", turns[::-1])):
                path = folder / f"scale-{name}-{number}.yaml"
                path.write_text(yaml.safe_dump([*pair * PAIRS, {"text": "Done."}]))
                files.append(path)
        return tuple(files)

    def _turn(self, seconds: float, call: dict[str, Any]) -> dict[str, Any]:
        milliseconds = int(seconds * 1000)
        return {
            "text": "{{turn}}".ljust(ANSWER_CHARACTERS, "."),
            "latency_ms": milliseconds,
            "first_token_ms": int(milliseconds * FIRST_TOKEN_SHARE),
            "calls": [call],
        }

    def _tool_call(self) -> dict[str, Any]:
        arguments = {"file": "{{goal}}", "line": "turn {{turn}}", "delay_ms": int(self.tool * 1000)}
        return {"name": "append_record", "arguments": arguments}


_QUESTION: Final[dict[str, Any]] = {"name": "ask_user", "arguments": {"question": "Shall I go on?"}}


@dataclass(slots=True)
class Load:
    """Submits tasks and answers their questions through the public API, a few calls at once."""

    client: Client
    pool: Pool
    mix: Mix
    models: tuple[str, ...]
    unanswered: int = 0
    _limit: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(CALLS_AT_ONCE))

    async def submit(self, count: int, seconds: float) -> list[str]:
        """Submits the tasks at a steady rate, as fast as the gateway takes them. Returns their ids."""
        loop = asyncio.get_running_loop()
        began, models = loop.time(), itertools.cycle(self.models)

        async def one(number: int) -> str:
            await asyncio.sleep(max(0.0, began + number * seconds / count - loop.time()))
            async with self._limit:
                agent = task_pb2.AgentSpec(model=next(models))
                request = api.SubmitTaskRequest(spec=task_pb2.TaskSpec(agent=agent))
                return (await self.client.submit(f"task-{number}", request=request)).task_id

        return list(await asyncio.gather(*(one(number) for number in range(count))))

    async def answer(self) -> None:
        """Answers each question when its person has thought, until it is cancelled."""
        while True:
            async with pool_connection(self.pool) as connection:
                rows = await (await connection.execute(_DUE, (self.mix.person, ANSWERS_A_POLL))).fetchall()
            await asyncio.gather(*(self._answer(task_id, wait_id) for task_id, wait_id in _waits(rows)))
            await asyncio.sleep(POLL_SECONDS)

    async def _answer(self, task_id: str, wait_id: str) -> None:
        """Answers one wait. While a service restarts, the next poll finds the wait again."""
        async with self._limit:
            try:
                await self.client.resume(task_id, wait_id, reply="yes", request_id=f"{task_id}/{wait_id}")
            except (TryLater, WrongState):
                self.unanswered += 1


def _waits(rows: list[Any]) -> Iterator[tuple[str, str]]:
    for task_id, encoded in rows:
        yield task_id, task_pb2.Wait.FromString(bytes(encoded)).wait_id
