"""The questions to a person at a terminal: which line answers them, where they stand, and Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, cast
from unittest.mock import AsyncMock, Mock

import grpc
import pytest

from tenure.cli.answering import ask_person
from tenure.cli.context import Context
from tenure.cli.exit_codes import Exit
from tenure.cli.found_gateway import StackOfAnotherFolder
from tenure.cli.submit import request_of
from tenure.client import Client
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.v1.admin_service_pb2 import GetCallerResponse
from tests.support.patience import PATIENCE_SECONDS

TASK = "01a2025d-5126-7000-8000-000000000000"


class Terminal:
    """A terminal with a person, who presses the next of `keys` at each question that they read."""

    def __init__(self) -> None:
        self._screen, self.stdin = os.openpty()
        self.keys: list[str] = []
        self.shown = ""
        asyncio.get_running_loop().add_reader(self._screen, self._read)

    def _read(self) -> None:
        self.shown += os.read(self._screen, 4096).decode()
        if self.keys and self.shown.endswith(("[y/n] ", "[y/N]: ")):
            self.press(self.keys.pop(0))

    def press(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    @contextmanager
    def used(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """This process reads and writes here inside the block."""
        with monkeypatch.context() as patched, ExitStack() as opened:
            for name, mode in (("stdin", "r"), ("stderr", "w")):
                patched.setattr(sys, name, opened.enter_context(os.fdopen(os.dup(self.stdin), mode)))
            yield

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._screen)
        os.close(self._screen)
        os.close(self.stdin)


@pytest.fixture
async def terminal() -> AsyncIterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


class TwoWaits:
    """A gateway that takes answers, while the person presses a key again."""

    def __init__(self, terminal: Terminal) -> None:
        self.answers: list[tuple[str, str]] = []
        self._terminal = terminal

    async def resume(self, _task_id: str, wait_id: str, *, decision: str, **_: Any) -> None:
        self.answers.append((wait_id, decision))
        self._terminal.press("y\n")
        assert (await asyncio.to_thread(select.select, [sys.stdin], [], [], PATIENCE_SECONDS))[0]


async def test_no_line_answers_a_later_question(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second `y` while the gateway took the first one approved the next call, which nobody had read."""
    gateway = TwoWaits(terminal)
    terminal.keys += ["y\n", "n\n"]
    with terminal.used(monkeypatch):
        for wait_id in ("w8", "w9"):
            wait = task_pb2.Wait(wait_id=wait_id, kind=task_pb2.WAIT_KIND_APPROVAL, options=["approve", "deny"])
            async with asyncio.timeout(PATIENCE_SECONDS):
                await ask_person(cast("Client", gateway), TASK, wait)
    assert gateway.answers == [("w8", "approve"), ("w9", "deny")]


@pytest.mark.parametrize("keys", ["y\n", "n\n"])
async def test_a_question_shows_control_characters(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    """Whatever listens at the usual address names the folder of its stack."""
    terminal.keys.append(keys)
    context = Context("127.0.0.1:8470", None, False, Path(), Mock(), {}, is_guessed=True)
    caller = GetCallerResponse(stack_folder="/home/\x1b[2J\x9b32m\u202e\nFORGED")
    with terminal.used(monkeypatch), suppress(StackOfAnotherFolder):
        await context.check(Mock(admin=Mock(GetCaller=AsyncMock(return_value=caller))))
    assert r"/home/\x1b[2J\x9b32m\u202e\nFORGED, which this folder did not start. Talk to it? [y/N]: " in terminal.shown
    assert not {"\x1b", "\x9b", "\u202e"} & set(terminal.shown)


WAITING: Final = task_pb2.Task(
    task_id=TASK,
    state=task_pb2.TASK_STATE_WAITING_USER,
    wait=task_pb2.Wait(wait_id="w8", kind=task_pb2.WAIT_KIND_APPROVAL, options=["approve", "deny"]),
)
QUEUED: Final = admin.TaskGroup(state=task_pb2.TASK_STATE_QUEUED, count=1, task_ids=[TASK])
ANSWERS: Final = {
    "GetTask": api.GetTaskResponse(task=WAITING),
    "ActOnTasks": admin.ActOnTasksResponse(groups=[QUEUED]),
}
CHILD: Final = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("tenure.cli", run_name="__main__", alter_sys=True)
"""
"""The command as a shell starts it: Ctrl-C at its terminal is a signal to it."""


class Gateway(grpc.GenericRpcHandler):
    """Answers each method of ANSWERS."""

    def service(self, details: Any) -> Any:
        answer = ANSWERS[details.method.rpartition("/")[2]]
        return grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer.SerializeToString())


@pytest.fixture
async def address() -> AsyncIterator[str]:
    server = grpc.aio.server(handlers=[Gateway()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


async def run(terminal: Terminal, address: str, *arguments: str) -> tuple[int, list[Any]]:
    """The exit code of a command at the terminal, and the lines of JSON in its standard output, which is a file."""
    command = (sys.executable, "-c", CHILD, "--json", "--address", address, *arguments)
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=terminal.stdin,
        stdout=PIPE,
        stderr=terminal.stdin,
        env={"PATH": os.environ["PATH"]},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            out, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()
    return process.returncode or 0, [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "question"),
    [
        (("resume", TASK, "--approve"), "approve: send this answer?"),
        (("cancel", "--state", "QUEUED"), "Cancelled: 1 task. Go on?"),
    ],
)
async def test_ctrl_c_at_a_question_ends_the_command(
    terminal: Terminal, address: str, arguments: tuple[str, ...], question: str
) -> None:
    """The first Ctrl-C did nothing, and the second one ended with the exit code of a failed task."""
    terminal.keys.append("\x03")
    code, values = await run(terminal, address, *arguments)
    assert code == Exit.INTERRUPTED, terminal.shown
    assert f"{question} [y/N]: " in terminal.shown
    assert all(isinstance(value, dict) for value in values), "standard output is JSON for programs"


class Reading:
    """Standard input on which nothing is typed but Ctrl-C."""

    def read(self) -> str:
        signal.raise_signal(signal.SIGINT)
        return "as if nothing had happened"


def test_ctrl_c_ends_the_reading_of_a_goal(monkeypatch: pytest.MonkeyPatch) -> None:
    async def submit() -> None:
        read.append(request_of("-"))

    read = list[Any]()
    monkeypatch.setattr(sys, "stdin", Reading())
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs behind
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(submit())
    finally:
        signal.signal(signal.SIGINT, before)
    assert read == []


async def test_only_a_yes_confirms(terminal: Terminal, address: str) -> None:
    """Neither an empty line nor another word; the end of the input is a no."""
    for keys in (["perhaps\n", "\n"], ["\x04"]):
        terminal.keys += keys
        assert (await run(terminal, address, "cancel", "--state", "QUEUED"))[0] == 1
    assert terminal.shown.count("[y/N]: ") == 3
