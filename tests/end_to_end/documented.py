"""Runs the commands of docs/commands.md, in order, as a terminal would, beside what `tenure dev --workers 2` starts.

The page says how it is written.

Every command is a process of its own, forked from one that has imported `tenure` already: there are many of them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
import shlex
import signal
import string
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from devstack import Stack, StackOptions
from tenure.cli.context import Context
from tenure.cli.dev import dev, stack_options
from tenure.cli.main import main
from tenure.client import Client
from tenure.runtime.request_context import DEFAULT_TENANT
from tenure.v1 import task_pb2
from tenure.wire.common import state_name
from tests.end_to_end.installation import Installation
from tests.support.lives import SHORT_LIFE
from tests.support.patience import PATIENCE_SECONDS

OF_THE_COMMAND = {"programs", "reload", "reset", "yes"}
"""The parameters of `tenure dev` that are not of its stack."""
PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
PIECE = re.compile(r"^```console\n(?P<console>.*?)^```$|^<!-- first: (?P<first>.*?) -->$", re.MULTILINE | re.DOTALL)
ASSIGNMENT = re.compile(r"(?P<name>[A-Z]+)=\$\((?P<command>.*)\)")
INTERRUPT = "^C"

VARYING = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b", "ID"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}(-[0-9a-f]{4}){2}-[0-9a-f]{12}\b", "ID"),
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}(-[0-9a-f]{4}){0,2}\b", "ID"),
    (r"whsec_\S+|(?<!\S)[A-Za-z0-9+/_-]{43,}=*", "SECRET"),
    (r"\btrace [0-9a-f]{32}\b", "TRACE"),
    (r" +[━┄◆][━┄▸]* *", " BAR "),
    (r"\bkey [0-9a-f]{8}\b|^[0-9a-f]{8}\b|^[0-9a-z]{12}(?= )", "KEY"),
    (r"\bhead \d+:[0-9a-f]{64}\b", "HEAD"),
    (r"\bkey_id=[0-9a-z]{12}\b", "KEY"),
    (r"127\.0\.0\.1:\d+", "PLACE"),
    (r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?=\d{4}-\d\d-\d\d)", ""),
    (r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?(\.\d+)?)?( ?(Z|UTC|[+-]\d\d:\d\d))?", "TIME"),
    (r"\b\d\d:\d\d(:\d\d)?\b", "TIME"),
    (r"\b(Mon|Tue|Wed|Thu|Fri|Sat|Sun) TIME\b", "TIME"),
    (r"\bworker-\d\b", "WORKER"),
    (r"\S+-\d+-[0-9a-f]{6}\b", "COORDINATOR"),
    (r"(?<=ran on) +\S+$", " PROCESS"),
    (r"^as seen by \S+$", "as seen by PROCESS"),
    (r"is (QUEUED \(OPERATOR_TRANSFER\): .*|RUNNING \(OPENED\))$", "goes on"),
    (r"\b[\d,.]+ ?(ms|s|min|days|h|d)\b( \d+ (s|min|h))*( ago)?", "SPAN"),
    (r"just now", "SPAN"),
    (r" \([\d,]+ from the cache, \d+ %\)", ""),  # whether it was warm
    (r"\b[\d,]+(\.\d+)?\b", "N"),
    (r"[ \t]+", " "),
    (r"(?<=SUBMITTED )(-|N in SPAN)(?= SPAN$)", "RENEWALS"),
)
"""What is another at every run, and how it is said instead."""


def normal(text: str) -> list[str]:
    """Lines that two runs have in common."""
    for pattern, same in VARYING:
        text = re.sub(pattern, same, text, flags=re.MULTILINE)
    return [line.strip() for line in text.splitlines()]


@dataclass(slots=True)
class Step:
    """A command of the page with what it said, or something that has to happen first: then `is_hidden`."""

    line: str
    output: str = ""
    is_hidden: bool = False


def steps_of(page: str) -> list[Step]:
    """All of a page, in order."""
    steps: list[Step] = []
    for piece in PIECE.finditer(page):
        if piece["first"]:
            steps.append(Step(piece["first"], is_hidden=True))
            continue
        for part in re.split(r"^\$ ", piece["console"], flags=re.MULTILINE)[1:]:
            line, _, output = part.partition("\n")
            steps.append(Step(line, output))
    return steps


def with_outputs(page: str, outputs: list[str]) -> str:
    """The page with these outputs instead of its own."""
    response = iter(outputs)

    def written(piece: re.Match[str]) -> str:
        if piece["first"]:
            return piece[0]
        lines = re.findall(r"^\$ .*$", piece["console"], re.MULTILINE)
        return "```console\n" + "".join(f"{line}\n{next(response)}" for line in lines) + "```"

    return PIECE.sub(written, page)


def options_of_dev(folder: Path, *words: str) -> StackOptions:
    """What `tenure dev WORDS` would start, with its data in the folder, in a shell without keys."""
    parsed = dev.make_context("dev", ["--data", str(folder / "data"), *words]).params
    context = Context("", DEFAULT_TENANT, False, folder / "data", Console(), {"PATH": os.environ["PATH"]})
    of_the_stack = {name: value for name, value in parsed.items() if name not in OF_THE_COMMAND}
    return stack_options(context, **of_the_stack)


@asynccontextmanager
async def plain_dev(folder: Path) -> AsyncIterator[Installation]:
    """An installation as a reader of the page has it: `tenure dev --workers 2`, whose workers outlast a standstill."""
    usual = options_of_dev(folder, "--workers", "2")
    environment = {**usual.environment, "*": {**usual.environment["*"], **SHORT_LIFE}}
    async with Stack(replace(usual, environment=environment)) as stack, Client(stack.gateway_address) as client:
        yield Installation(stack, client)


@dataclass(slots=True)
class Terminal:
    """Runs steps one after another; remembers what they assign."""

    install: Installation
    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    async def run(self, step: Step) -> str:
        """What the terminal shows."""
        if step.is_hidden:
            await self._first(self._filled(step.line).split())
            return ""
        assigned = ASSIGNMENT.fullmatch(step.line)
        lines = step.output.count("\n") - 1 if step.output.endswith(f"{INTERRUPT}\n") else None
        output = await self._command(self._filled(assigned["command"] if assigned else step.line), lines)
        assert "Traceback (most recent call last)" not in output, f"{step.line}\n{output}"
        if assigned is None:
            return output
        assert output, step.line
        self.variables[assigned["name"]] = output.split()[0]
        return ""

    def _client(self) -> Client:
        return Client(self.install.stack.gateway_address)

    def _filled(self, line: str) -> str:
        return string.Template(line).substitute(self.variables)

    async def _first(self, words: list[str]) -> None:
        match words:
            case ["wait", task_id, state]:
                await self._until(task_id, lambda task: state_name(task.state) == state)
            case ["work", task_id]:
                # The tokens of an owner before stay reserved until the next owner has opened the task.
                await self._until(
                    task_id, lambda task: state_name(task.state) == "RUNNING" and task.budget.reserved_tokens > 0
                )
            case ["restart", service]:
                await self.install.stack.services[service].restart()
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while any(one.draining for one in (await self.install.client.workers()).workers):
                        await asyncio.sleep(0.1)
            case ["arm", service, failpoints]:
                await self.install.stack.services[service].drain()
                self.install.stack.services[service].start({"TENURE_FAILPOINTS": failpoints})
                await self.install.stack.services[service].wait_ready()
            case ["doubt", task_id, service]:
                await self.install.died(self.install.stack.services[service])
                await self.install.stack.services[service].restart()
                async with asyncio.timeout(PATIENCE_SECONDS), self._client() as client:
                    while not [one async for one in client.in_doubt(task_id) if one.call.runner_gone]:
                        await asyncio.sleep(0.1)
                # The tools list the call before the worker hears of it and has the task wait.
                await self._until(task_id, lambda task: state_name(task.state) == "WAITING_USER")
            case ["agent", file, *system]:
                text = f'name = "support"\nmodel = "sim-hello"\nsystem = "{" ".join(system)}"\n'
                (self.folder / file).write_text(text)
            case ["rule", file]:
                page = PAGE.with_name("rules.md").read_text()
                (self.folder / file).write_text(page.partition("```toml\n")[2].partition("```")[0])
            case _:
                raise AssertionError(f"first: {words} is not known here")

    async def _until(self, task_id: str, is_so: Callable[[task_pb2.Task], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), self._client() as client:
            while not is_so(await client.get(task_id)):
                await asyncio.sleep(0.05)

    async def _command(self, line: str, lines: int | None) -> str:
        """Runs it to its end, or until it has said so many lines, and then Ctrl-C."""
        name, *arguments = shlex.split(line)
        assert name == "tenure", line
        shown = self.folder / "shown"
        shown.write_bytes(b"")
        data = str(self.install.stack.layout.data_dir)
        environment = {"TENURE_ADDRESS": self.install.stack.gateway_address, "TENURE_DATA": data}
        forks = multiprocessing.get_context("forkserver")
        forks.set_forkserver_preload(["__main__", __name__])
        process = forks.Process(target=_be_command, args=(arguments, environment, shown))
        await asyncio.to_thread(process.start)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while lines is not None and shown.read_text().count("\n") < lines:
                assert process.is_alive(), shown.read_text()
                await asyncio.sleep(0.02)
        if lines is not None:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGINT)
        await asyncio.to_thread(process.join, PATIENCE_SECONDS)
        assert process.exitcode is not None, f"{line} does not end"
        process.close()
        text = re.sub(r"[ \t]+$", "", shown.read_text(), flags=re.MULTILINE)
        return text if lines is None else "".join(text.splitlines(keepends=True)[:lines]) + f"{INTERRUPT}\n"


def _be_command(arguments: list[str], environment: dict[str, str], shown: Path) -> None:
    """In a process of its own: what is said goes to the file, in the order in which it is said."""
    os.chdir(shown.parent)
    descriptor = os.open(shown, os.O_WRONLY | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    sys.argv = ["tenure", *arguments]
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    main()
