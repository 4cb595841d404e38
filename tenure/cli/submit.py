"""`tenure submit`: submits a task, a goal for an agent or a control function."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

from tenure.cli.context import Context, with_client
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import caps_text, model_text, money_cap_text, short_id
from tenure.cli.group import SectionedCommand, SectionOption
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION, SOURCE
from tenure.cli.questions import read_standard_input
from tenure.cli.task_options import TASK_OPTIONS, typed_names
from tenure.cli.watch import watch_task
from tenure.client import Client
from tenure.domain.agents import read_reference
from tenure.domain.errors import TenureError
from tenure.domain.task import MOST_LIVE, Source, SourceKind
from tenure.sdk.errors import named_arguments
from tenure.sdk.option_values import source as source_to_wire
from tenure.sdk.submit_options import PARAMETERS
from tenure.sdk.submit_request import is_given, put_field
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import timestamp


@click.command(cls=SectionedCommand, short_help="Submit a task: GOAL for an agent, or a control function.")
@click.argument("goal", required=False, default="")
@click.option("--watch", "watched", is_flag=True, help="Show the task's steps until it ends.")
@click.option(
    "--start-in",
    cls=SectionOption,
    section="Queue",
    type=DURATION,
    default=None,
    help="Start not before this much time has passed, for example 2h.",
)
@click.option(
    "--conversation",
    cls=SectionOption,
    section="Work",
    metavar="ID",
    default="",
    help="The conversation that the task belongs to.",
)
@click.option(
    "--source",
    cls=SectionOption,
    section="Work",
    type=SOURCE,
    default=None,
    metavar="KIND/ID[/RUN]",
    help="The source and its run: scheduler/nightly/2026-11-23. A run is one task: a repeat gets that task.",
)
@click.option(
    "--exclusive",
    cls=SectionOption,
    section="Work",
    is_flag=True,
    help="Refuse the submit while another exclusive task of the conversation or source has not ended.",
)
@click.option(
    "--at-most",
    cls=SectionOption,
    section="Work",
    type=click.IntRange(1, MOST_LIVE),
    default=None,
    help="Wait in line while so many tasks of the conversation or source are live.",
)
@click.option(
    "--debounce",
    cls=SectionOption,
    section="Work",
    type=DURATION,
    default=None,
    help="With --at-most: begin after this time, and let a later submit with --debounce replace the task until then.",
)
@with_client
async def submit(context: Context, client: Client, /, goal: str, watched: bool, **options: Any) -> Exit:
    """Submit a task with GOAL for an agent; `-` reads GOAL from standard input.

    With --agent an agent in Python gets GOAL. With --function a control function runs, and GOAL is only a description
    for people.

    Prints the task's id. With --watch also shows its steps; the exit code is then 0 if it SUCCEEDED, else 1.
    """
    request = request_of(goal, **options)

    with named_arguments(typed_names(options)):
        task = await client.submit(request.spec.goal, request=request)
    if context.as_json:
        context.emit(task)
    elif watched:
        context.console.print(f"task {task.task_id}", style="bold", soft_wrap=True)
    else:
        _print_submitted(task)
        if task.spec.HasField("control"):
            await _warn_of_no_worker(client, task.task_id)
    return await watch_task(context, client, task.task_id) if watched else Exit.OK


submit.params[2:2] = TASK_OPTIONS  # after GOAL and --watch


def request_of(goal: str, **options: Any) -> api.SubmitTaskRequest:
    """Returns the submit that the options describe. Raises UsageError for options that exclude each other."""
    spec = spec_of(goal, **options)
    conversation = options.get("conversation", "")
    source = options.get("source") or Source(_source_kind(spec.control.function, conversation), conversation)
    spec.source.CopyFrom(source_to_wire("--source", _with_line(source, options)))
    if (start_in := options.get("start_in")) is not None:
        spec.start_time.CopyFrom(timestamp(datetime.now(UTC) + timedelta(seconds=start_in)))
    request = api.SubmitTaskRequest(spec=spec)
    for option in TASK_OPTIONS:
        if option.is_in(options) and not option.path:
            put_field(request, option.name or "", option.to_wire(options[option.name or ""]))
    return request


def _with_line(source: Source, options: Mapping[str, Any]) -> Source:
    """Returns the source with what the task does while the source is busy. Raises UsageError."""
    exclusive, at_most, debounce = options.get("exclusive", False), options.get("at_most"), options.get("debounce")
    for flag, value in (("--exclusive", exclusive), ("--at-most", at_most)):
        if value and not source.source_id:
            raise click.UsageError(f"{flag} works only with --conversation or --source KIND/ID")
    if debounce is not None and at_most is None:
        raise click.UsageError("--debounce works only with --at-most N")
    return replace(source, exclusive=exclusive, at_most=at_most or 0, debounce_seconds=debounce)


def spec_of(goal: str, **options: Any) -> task_pb2.TaskSpec:
    """Returns the task that the options describe. Raises UsageError for options that exclude each other."""
    given = {name: value for name, value in options.items() if is_given(value)}
    for one, other in _EXCLUSIVE:
        if one in given and other in given:
            flags = (f"--{name.replace('_', '-')}" for name in (one, other))
            raise click.UsageError(f"{' and '.join(flags)} cannot be given together")
    if "-" == goal == given.get("given"):
        raise click.UsageError("GOAL and --input cannot both come from standard input")
    goal = _text(goal)
    spec = _of_code(goal, given)
    for option in TASK_OPTIONS:
        if option.is_in(options) and option.path and not option.path.startswith("control."):
            put_field(spec, option.path, option.to_wire(options[option.name or ""]))
    spec.goal = goal
    return spec


_EXCLUSIVE: Final = (
    ("tools", "no_tools"),
    ("max_cost", "no_max_cost"),
    ("source", "conversation"),
    ("start_at", "start_in"),
    ("exclusive", "at_most"),
    ("agent", "function"),
)


def _of_code(goal: str, given: Mapping[str, Any]) -> task_pb2.TaskSpec:
    """Returns a spec with the function or the agent in Python that is named, if there is one. Raises UsageError."""
    agent, function = given.get("agent", ""), given.get("function", "")
    if agent and given.keys() & {"model", "system", "tools", "no_tools", "max_output_tokens", *PARAMETERS}:
        raise click.UsageError("the agent chooses its model with its parameters, system prompt and tools itself")
    if agent and not goal.strip():
        raise click.UsageError("give a GOAL that is not blank: the agent begins with it")
    if not (agent or function):
        if "given" in given:
            raise click.UsageError("--input works only with --function or --agent")
        if not goal.strip():
            raise click.UsageError("give a GOAL that is not blank, or a --function")
        return task_pb2.TaskSpec()
    try:
        name, revision = read_reference(agent or function)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    return task_pb2.TaskSpec(
        control=task_pb2.ControlWork(function=name, input_json=_text(given.get("given", ""))),
        agent_pin=task_pb2.AgentPin(revision=revision) if revision else None,
    )


def _text(argument: str) -> str:
    """Returns the argument, or standard input for `-`."""
    return read_standard_input().strip() if argument == "-" else argument


def _source_kind(function: str, conversation: str) -> SourceKind:
    """Returns the kind of the task's source: a conversation, a backend with a control function, or a person."""
    if conversation:
        return SourceKind.CONVERSATION
    return SourceKind.CONTROL if function else SourceKind.MANUAL


async def _warn_of_no_worker(client: Client, task_id: str) -> None:
    """Says at once that no worker runs the agent or the function: its name may be mistyped."""
    with suppress(TenureError):  # the task is submitted, and this is only a hint
        explained = await client.tasks.ExplainTask(api.ExplainTaskRequest(task_id=task_id))
        if explained.obstacle:
            echo(f"Warning: {explained.obstacle}. Check the name, or start a worker: the task waits for one.", err=True)


def _print_submitted(task: task_pb2.Task) -> None:
    """Prints the id on standard output, alone, for scripts; caps and advice on standard error."""
    echo(task.task_id)
    caps = "; ".join(part for part in (caps_text(task.budget), money_cap_text(task.spec)) if part)
    runs_it = task.spec.control.function if task.spec.HasField("control") else model_text(task.spec)
    echo(f"Submitted, for {runs_it}. Its caps: {caps}.", err=True)
    echo(f"Watch it: tenure watch {short_id(task.task_id)}", err=True)
