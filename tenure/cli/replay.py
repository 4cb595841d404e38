"""`tenure tasks replay`: a task again from its beginning, with another model and the recorded outcomes of its tools.

The command starts a worker of its own for one task, which executes no tool (services/worker/replay.py): the user's
program for a run of its code. No other worker takes the task: none offers the loop `replay`, and the queue is new.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from tenure.cli.context import Context, with_client
from tenure.cli.error_texts import exit_of_task
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import count_text, summary, why
from tenure.cli.output import echo, echo_result
from tenure.cli.parameters import find_task
from tenure.cli.tasks import result_of
from tenure.client import Client
from tenure.client.replays import (
    ReplayError,
    UnreadableLedger,
    check_replay,
    compare_runs,
    copied_files,
    read_ledger,
    record_for_worker,
    replay_request,
    spec_of,
    worker_settings,
)
from tenure.domain.errors import WrongState
from tenure.domain.replay import NOT_RECORDED_MARK
from tenure.runtime.running_stack import find_addresses, given_vendors
from tenure.serve import command_line
from tenure.v1 import ledger_pb2, task_pb2
from tenure.v1 import task_service_pb2 as api

DRAIN_SECONDS: Final = 15.0
_CODE: Final = "--program FILE, or --functions MODULE"
_SHOWN_DIFFERENCES: Final = 5
_LOG_LINES: Final = 20
_LOG_BYTES: Final = 32 * 1024
_STACK: Final = {
    "TENURE_WORKER_COORDINATOR_ADDRESS": "coordinator",
    "TENURE_WORKER_CHECKPOINT_ADDRESS": "checkpoint",
    "TENURE_WORKER_TOOLS_ADDRESS": "tools",
}


@click.command(short_help="Run TASK again with another model, and no effects.")
@click.argument("task", metavar="[TASK]", required=False)
@click.option(
    "--ledger",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Replay the run in this file instead of TASK: the output of `tenure tasks entries TASK --json -v`.",
)
@click.option("--model", default="", help="The model of the replay. Of code without it: the record answers.")
@click.option("--system", default=None, help="Use another system prompt.")
@click.option(
    "--program",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The program with the code of the run: an agent in Python, or a function. It runs a tenure.agents.Worker.",
)
@click.option("--functions", metavar="MODULE", multiple=True, help="A module with FUNCTIONS, instead of a program.")
@click.option("--recorded-tools", is_flag=True, help="Answer tool calls from the record, and execute none.")
@with_client
async def replay(
    context: Context,
    client: Client,
    task: str | None,
    ledger: Path | None,
    model: str,
    system: str | None,
    program: Path | None,
    functions: tuple[str, ...],
    recorded_tools: bool,
) -> Exit:
    """Run TASK again from its beginning, with another model, as a new task that changes nothing outside.

    A tool call that TASK made too, with the same arguments, gets the recorded outcome, also if a person, an event or
    sub-agents answered it; the model reads of any other that it is not in the record. Messages that people sent to TASK
    are read at the same steps. No person is asked, and no sub-agent is spawned. Prints how the new task ended, and
    where it differs from TASK.

    An agent in Python, or a function, runs again from its beginning in the worker of --program or --functions. Its
    steps and tools do not run: their results come from the record. Without --model its model calls do not, either.

    The command runs a worker for it, with the settings of `tenure serve worker` in the environment: the addresses of
    the services, unless `tenure dev` runs here, and the key of the model. Needs the extra: pip install
    'tenure[server]'.
    """
    if (task is None) == (ledger is None):
        raise click.UsageError("name either TASK or --ledger FILE: the run to replay")
    if not recorded_tools:
        raise click.UsageError(
            "say --recorded-tools: a replay executes no tool. To run TASK again with its tools: "
            "tenure fork TASK --step 0 --model MODEL"
        )
    code = Code(model, program, functions)
    try:
        name, entries = (ledger.name, read_ledger(ledger)) if ledger else await _recorded(client, task or "")
        spec = spec_of(entries, "TASK")
        check_replay(spec, "TASK", _CODE, has_code=code.is_named, has_model=bool(model), system=system is not None)
        request = replay_request(spec, name, model, system=system)
    except (UnreadableLedger, ReplayError) as error:
        raise click.ClickException(str(error)) from error
    return await replay_in_task(context, client, request, entries, "" if ledger else name, code)


@dataclass(frozen=True, slots=True)
class Code:
    """What the worker of a replay runs: `program`, or else the modules `functions`. `model`: of its agents."""

    model: str = ""
    program: Path | None = None
    functions: tuple[str, ...] = ()

    @property
    def is_named(self) -> bool:
        """Whether it is the code of a function or of an agent in Python."""
        return self.program is not None or bool(self.functions)


_NO_CODE: Final = Code()


async def _recorded(client: Client, task: str) -> tuple[str, list[ledger_pb2.Entry]]:
    task_id = await find_task(client, task)
    return task_id, [entry async for entry in client.entries(task_id)]


async def replay_in_task(
    context: Context,
    client: Client,
    request: api.SubmitTaskRequest,
    entries: list[ledger_pb2.Entry],
    recorded_task_id: str = "",
    code: Code = _NO_CODE,
) -> Exit:
    """Runs the replay. `recorded_task_id`: the task whose files it has; "": of a run from a file, there are none."""
    with tempfile.TemporaryDirectory(prefix="tenure-replay-") as folder:
        record = Path(folder) / "entries"
        record.write_bytes(record_for_worker(entries))
        if recorded_task_id:
            request.files.extend(await copied_files(client.tasks, recorded_task_id, entries, record.parent))
        settings = worker_settings(record, request.spec, code.model, code.functions)
        async with replay_worker({**worker_environment(context, request.spec.queue), **settings}, code.program) as died:
            submitted = await client.submit(request.spec.goal, request=request)
            ended = asyncio.ensure_future(client.wait(submitted.task_id))
            try:
                await asyncio.wait({ended, died}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:  # Ctrl-C: no other worker would ever take the task
                await _cancel(client, submitted.task_id, "the replay was interrupted")
                raise
            if not ended.done():
                ended.cancel()
                await _cancel(client, submitted.task_id, "the worker of the replay has ended")
                raise click.ClickException(f"the worker of the replay has ended:\n{died.result()}")
            task = await ended
    await _show(context, client, task, entries)
    return exit_of_task(task)


async def _cancel(client: Client, task_id: str, reason: str) -> None:
    with suppress(WrongState):  # it has ended meanwhile
        await client.cancel(task_id, reason)


def worker_environment(context: Context, queue: str) -> dict[str, str]:
    """Returns the environment of the worker: that of the command, with the addresses of the stack that runs here.

    Without them if the command asks the gateway of another one, which gets the task.
    """
    running = find_addresses(context.data_dir) or {}
    if set(context.address.split(",")).isdisjoint(running.get("gateway", "").split(",")):
        running = {}
    known = {variable: running[part] for variable, part in _STACK.items() if part in running}
    model = _model_of(running, context.environment)
    return {**known, **context.environment, **model, "TENURE_WORKER_ID": queue, "TENURE_WORKER_SLOTS": "1"}


def _model_of(running: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the simulator of the stack that runs here as the model provider, unless the command gives one."""
    url = running.get("model", "")
    if given_vendors(environment) or not url.startswith("http://127.0.0.1:"):
        return {}
    libraries = {"OPENAI_API_KEY": "none", "OPENAI_AGENTS_DISABLE_TRACING": "1"}  # of agents in Python; without traces
    return {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": "none", "OPENAI_BASE_URL": f"{url}/v1", **libraries}


@asynccontextmanager
async def replay_worker(
    environment: Mapping[str, str], program: Path | None = None
) -> AsyncIterator[asyncio.Task[str]]:
    """Runs the worker inside the block. Yields a task that ends with it: the end of its log, if it ends too early."""
    command = command_line("worker") if program is None else [sys.executable, str(program)]
    process = await asyncio.create_subprocess_exec(
        *command, env=dict(environment), stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE
    )

    async def log() -> str:
        assert process.stderr is not None
        end = b""
        while piece := await process.stderr.read(_LOG_BYTES):  # a line may be longer than the reader's limit
            end = (end + piece)[-_LOG_BYTES:]
        await process.wait()
        return "\n".join(end.decode(errors="replace").splitlines()[-_LOG_LINES:])

    died = asyncio.create_task(log(), name="log of the worker")
    try:
        yield died
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait({died}, timeout=DRAIN_SECONDS)
        if process.returncode is None:
            process.kill()
        await died


async def _show(context: Context, client: Client, task: task_pb2.Task, recorded: Sequence[ledger_pb2.Entry]) -> None:
    if context.as_json:
        context.emit(task)
        return
    replayed = [entry async for entry in client.entries(task.task_id)]
    echo(f"{why(task.state, task.reason, task.message)} · {summary(task)} · {task.task_id}")
    echo(_calls_text(replayed))
    differences = compare_runs(recorded, replayed)
    for difference in differences[:_SHOWN_DIFFERENCES]:
        echo(f"Differs at {difference}")
    if len(differences) > _SHOWN_DIFFERENCES:
        echo(f"and {len(differences) - _SHOWN_DIFFERENCES} more differences")
    echo_result(result_of(task))


def _calls_text(replayed: Sequence[ledger_pb2.Entry]) -> str:
    """Returns the number of the calls, and those that the record does not have."""
    intents: dict[str, str] = {}
    unrecorded: list[str] = []
    for entry in replayed:
        if entry.body.HasField("tool_intent"):
            intents[entry.body.tool_intent.call_id] = entry.body.tool_intent.tool
        elif entry.body.HasField("tool_outcome"):
            outcome = entry.body.tool_outcome
            if outcome.outcome.content.startswith(NOT_RECORDED_MARK):
                unrecorded.append(f"{outcome.call_id} {intents.get(outcome.call_id, '?')}")
    missing = f", not in the record: {', '.join(unrecorded)}" if unrecorded else ", all from the record"
    return f"{count_text(len(intents), 'tool call')}{missing if intents else ''}"
