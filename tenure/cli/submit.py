"""`tenure submit`: submits a task, a goal for an agent or a control function."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
from google.protobuf import json_format

from tenure.cli.context import Context, pass_context
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import (
    caps_text,
    model_text,
    money_cap_text,
    short_id,
)
from tenure.cli.output import echo
from tenure.cli.parameters import DOLLARS, DURATION, LABEL, NAMES, SOURCE, TIMEOUT
from tenure.cli.tasks import result_schema_option
from tenure.cli.watch import watch_task
from tenure.client import Client
from tenure.domain.agents import read_reference
from tenure.domain.task import Source, SourceKind
from tenure.domain.timeouts import Phase, TimeoutAction
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import SOURCES, TIMEOUT_ACTIONS, duration, timestamp

# Types of options: start times and phase timeouts.

_PHASES = {phase.field.replace("_", "-"): phase for phase in Phase}
_ACTIONS = {action.value.lower().replace("_", "-"): action for action in TimeoutAction}

MAX_ESCALATIONS_CHARACTERS: Final = 65_536


class MomentType(click.ParamType[datetime]):
    """`2026-11-23T07:00` in the time zone of this machine, or with a zone: `2026-11-23T07:00+01:00`, `…Z`."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            return datetime.fromisoformat(str(value).strip()).astimezone(UTC)
        except (ValueError, OverflowError, OSError):
            self.fail(f"{value!r} is not a time; write for example 2026-11-23T07:00 or 2026-11-23T07:00Z", param, ctx)


class EscalationsType(click.ParamType[task_pb2.WaitEscalations]):
    """A file with the escalations as JSON: {"person": [{"after": "3600s", "assignee": "lead"}], "event": []}."""

    name = "file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> task_pb2.WaitEscalations:
        if isinstance(value, task_pb2.WaitEscalations):
            return value
        try:
            with Path(value).open(encoding="utf-8") as file:
                text = file.read(MAX_ESCALATIONS_CHARACTERS + 1)
        except (OSError, ValueError) as error:
            self.fail(f"{value}: {error}", param, ctx)
        if len(text) > MAX_ESCALATIONS_CHARACTERS:
            self.fail(f"{value}: more than {MAX_ESCALATIONS_CHARACTERS} characters", param, ctx)
        try:
            return json_format.Parse(text, task_pb2.WaitEscalations())
        except json_format.ParseError as error:
            self.fail(f"{value}: {error}", param, ctx)


class PhaseTimeoutType(click.ParamType[tuple[str, task_pb2.PhaseTimeout]]):
    """`queued=10m`, `queued=10m:retry`, `tool-call=:fail`: a phase with a timeout, an action or both."""

    name = "phase=duration:action"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, task_pb2.PhaseTimeout]:
        if isinstance(value, tuple):
            return value
        name, _, text = str(value).partition("=")
        after, _, action = text.partition(":")
        if name not in _PHASES:
            self.fail(f"{name!r} is not a phase; the phases are {', '.join(_PHASES)}", param, ctx)
        if (action and action not in _ACTIONS) or not (after or action):
            self.fail(
                f"{text!r} is not a timeout; write {name}=DURATION or {name}=DURATION:ACTION; the actions are "
                f"{', '.join(_ACTIONS)}",
                param,
                ctx,
            )
        timeout = task_pb2.PhaseTimeout(after=duration(DURATION.convert(after, param, ctx)) if after else None)
        if action:
            timeout.action = TIMEOUT_ACTIONS.to_wire(_ACTIONS[action])
        return _PHASES[name].field, timeout


MOMENT = MomentType()
PHASE_TIMEOUT = PhaseTimeoutType()


def start_time_of(start_at: datetime | None, start_in: float | None) -> datetime | None:
    """Returns the start time, or None for a start at once. Raises UsageError if both options are given."""
    if start_at is not None and start_in is not None:
        raise click.UsageError("--start-at and --start-in cannot be given together")
    return start_at if start_in is None else datetime.now(UTC) + timedelta(seconds=start_in)


PRIORITIES: Final = {
    "high": task_pb2.PRIORITY_HIGH,
    "normal": task_pb2.PRIORITY_NORMAL,
    "low": task_pb2.PRIORITY_LOW,
}
IN_DOUBT: Final = {
    "wait": task_pb2.IN_DOUBT_POLICY_WAIT_FOR_PERSON,
    "tell": task_pb2.IN_DOUBT_POLICY_TELL_MODEL,
}
ON_BUDGET: Final = {
    "end": task_pb2.BUDGET_POLICY_END,
    "ask": task_pb2.BUDGET_POLICY_ASK,
}
LEASE_LOST: Final = {
    "resume": task_pb2.LEASE_LOST_POLICY_RESUME,
    "time-out": task_pb2.LEASE_LOST_POLICY_TIME_OUT,
}


@click.command(short_help="Submit a task: GOAL for an agent, or a control function.")
@click.argument("goal", required=False, default="")
@click.option("--watch", "watched", is_flag=True, help="Show the task's steps until it ends.")
@click.option(
    "--function", metavar="NAME[@REVISION]", default="", help="Run this control function instead of an agent."
)
@click.option("--agent", metavar="NAME[@REVISION]", default="", help="Give GOAL to this agent.")
@click.option(
    "--input",
    "given",
    metavar="JSON",
    default="",
    help="The input of the function or the agent; `-` reads it from standard input.",
)
@click.option("--model", default="", help="The model. Default: the default of the installation.")
@click.option("--system", default="", help="The system prompt.")
@click.option("--tools", type=NAMES, help="The tools that the agent gets, a,b,c. Default: all.")
@click.option("--no-tools", is_flag=True, help="Give the agent no tools.")
@click.option("--approve-tools", type=NAMES, help="Tools whose calls wait for an approval, a,b,c. Default: none.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    default=None,
    help="Cap in tokens, for all model calls of the task and its sub-agents.",
)
@click.option(
    "--max-cost",
    type=DOLLARS,
    default=None,
    help="Cap in dollars for the same calls: 0.50. Default: the cap of the installation, if the price is known.",
)
@click.option("--no-max-cost", is_flag=True, help="Set no cap in dollars, not even the default.")
@click.option(
    "--max-steps", type=click.IntRange(min=1), default=None, help="The most steps: model calls with their tool calls."
)
@click.option(
    "--max-output-tokens",
    type=click.IntRange(1, 64_000),
    default=None,
    help="The most output tokens of one model call.",
)
@click.option(
    "--timeout", type=TIMEOUT, default=None, help="The time from submit to end, for example 10m; at most 24h."
)
@click.option("--start-at", type=MOMENT, default=None, help="Start not before this time, for example 2026-11-23T07:00.")
@click.option(
    "--start-in", type=DURATION, default=None, help="Start not before this much time has passed, for example 2h."
)
@click.option(
    "--phase-timeout",
    "phase_timeouts",
    type=PHASE_TIMEOUT,
    multiple=True,
    help="The limit of a phase and the action when it is passed, for example queued=10m:retry; may be repeated.",
)
@click.option(
    "--escalations",
    type=EscalationsType(),
    default=None,
    help="A JSON file with the steps of waits without an answer: see docs/waits.md. Default: none.",
)
@click.option(
    "--approver",
    "approvers",
    multiple=True,
    metavar="WHO",
    help="Who alone may answer the waits of the task: group:NAME or a member as in `tenure approvers set`; may be"
    " repeated. Default: everyone with the permission APPROVE.",
)
@click.option(
    "--priority",
    type=click.Choice(list(PRIORITIES)),
    default=None,
    help="The priority tier; a higher tier is served first.",
)
@click.option("--queue", default="", help="The queue; only its workers take the task.")
@click.option("--label", "labels", type=LABEL, multiple=True, help="A label, key=value; may be repeated.")
@click.option("--conversation", metavar="ID", default="", help="The conversation that the task belongs to.")
@click.option(
    "--source",
    type=SOURCE,
    default=None,
    metavar="KIND/ID[/RUN]",
    help="The source and its run: scheduler/nightly/2026-11-23. A run is one task: a repeat gets that task.",
)
@click.option(
    "--exclusive",
    is_flag=True,
    help="Refuse the submit while another exclusive task of the conversation or source has not ended.",
)
@click.option("--loop", default="", help="The loop that drives the task; a worker must have it. Default: messages.")
@click.option(
    "--retries",
    type=click.IntRange(0, 99),
    default=None,
    help="How often the task is retried when its function fails or a phase is late. Default: 3.",
)
@result_schema_option("A file with the JSON Schema of the result. Default: any text.")
@click.option(
    "--result-corrections",
    type=click.IntRange(0, 20),
    default=None,
    help="How often the agent may correct a result that does not fit the schema. Default: 3.",
)
@click.option(
    "--request-id",
    default="",
    help="Makes the submit safe to repeat: a repeat with the same id creates no second task.",
)
@click.option(
    "--on-in-doubt",
    type=click.Choice(list(IN_DOUBT)),
    default="wait",
    help="When a tool call is in doubt: wait for a person, or tell the model.",
)
@click.option(
    "--on-budget",
    type=click.Choice(list(ON_BUDGET)),
    default="end",
    help="At a cap in tokens or money: end the task, or ask a person for more (tenure waits).",
)
@click.option(
    "--on-lease-lost",
    type=click.Choice(list(LEASE_LOST)),
    default="resume",
    help="When the claim is lost: another worker resumes the task, or it ends as TIMED_OUT.",
)
@pass_context
def submit(context: Context, /, goal: str, watched: bool, **options: Any) -> None:
    """Submit a task with GOAL for an agent; `-` reads GOAL from standard input.

    With --agent an agent in Python gets GOAL. With --function a control function runs, and GOAL is only a description
    for people.

    Prints the task's id. With --watch also shows its steps; the exit code is then 0 if it SUCCEEDED, else 1.
    """
    request = request_of(goal, **options)

    async def work(client: Client) -> Exit:
        task = await client.submit(request.goal, request=request)
        if context.as_json:
            context.emit(task)
        elif watched:
            context.console.print(f"task {task.task_id}", style="bold", soft_wrap=True)
        else:
            _print_submitted(task)
        return await watch_task(context, client, task.task_id) if watched else Exit.OK

    raise SystemExit(context.run(work))


def request_of(
    goal: str,
    *,
    model: str = "",
    system: str = "",
    tools: tuple[str, ...] | None = None,
    no_tools: bool = False,
    approve_tools: tuple[str, ...] | None = None,
    max_tokens: int | None = None,
    max_cost: int | None = None,
    no_max_cost: bool = False,
    max_steps: int | None = None,
    max_output_tokens: int | None = None,
    timeout: float | None = None,
    start_at: datetime | None = None,
    start_in: float | None = None,
    phase_timeouts: tuple[tuple[str, task_pb2.PhaseTimeout], ...] = (),
    escalations: task_pb2.WaitEscalations | None = None,
    approvers: tuple[str, ...] = (),
    priority: str | None = None,
    queue: str = "",
    labels: tuple[tuple[str, str], ...] = (),
    request_id: str = "",
    on_in_doubt: str = "wait",
    on_budget: str = "end",
    on_lease_lost: str = "resume",
    loop: str = "",
    function: str = "",
    agent: str = "",
    given: str = "",
    retries: int | None = None,
    conversation: str = "",
    source: Source | None = None,
    exclusive: bool = False,
    result_schema: str | None = None,
    result_corrections: int | None = None,
) -> api.SubmitTaskRequest:
    """Returns the submit that the options describe. Raises UsageError for options that exclude each other."""
    if tools and no_tools:
        raise click.UsageError("--tools and --no-tools cannot be given together")
    if max_cost and no_max_cost:
        raise click.UsageError("--max-cost and --no-max-cost cannot be given together")
    if source is not None and conversation:
        raise click.UsageError("--source and --conversation cannot be given together")
    named = _function(function, agent, goal, has_own=bool(model or system or tools or no_tools or max_output_tokens))
    function, agent_revision = _revision(named)
    source = source or Source(_source_kind(function, conversation), conversation)
    if exclusive and not source.source_id:
        raise click.UsageError("--exclusive works only with --conversation or --source KIND/ID")
    if not function and (given or not goal):
        raise click.UsageError(
            "--input works only with --function or --agent" if given else "give a GOAL or a --function"
        )
    if "-" == goal == given:
        raise click.UsageError("GOAL and --input cannot both come from standard input")
    start_time = start_time_of(start_at, start_in)
    allowed = None if tools is None and not no_tools else task_pb2.ToolAllowlist(names=tools or ())
    return api.SubmitTaskRequest(
        request_id=request_id,
        goal=_text(goal),
        agent=task_pb2.AgentSpec(
            loop=loop,
            model=model,
            system=system,
            tools=allowed,
            max_output_tokens=max_output_tokens or 0,
            approve_tools=approve_tools or (),
        ),
        limits=task_pb2.Limits(
            max_tokens=max_tokens or 0,
            max_nano_usd=max_cost or 0,
            no_money_cap=no_max_cost,
            max_steps=max_steps or 0,
            timeout=None if timeout is None else duration(timeout),
        ),
        policy=task_pb2.TaskPolicy(
            on_in_doubt=IN_DOUBT[on_in_doubt],
            on_budget=ON_BUDGET[on_budget],
            on_lease_lost=LEASE_LOST[on_lease_lost],
            retry=None if retries is None else task_pb2.RetryPolicy(max_attempts=retries + 1),
            max_result_corrections=result_corrections,
            timeouts=task_pb2.Timeouts(**dict(phase_timeouts)) if phase_timeouts else None,
            escalations=escalations,
            approvers=approvers,
        ),
        priority=task_pb2.PRIORITY_UNSPECIFIED if priority is None else PRIORITIES[priority],
        queue=queue,
        labels=dict(labels),
        source=task_pb2.Source(
            kind=SOURCES.to_wire(source.kind),
            source_id=source.source_id,
            source_run_id=source.source_run_id,
            exclusive=exclusive,
        ),
        control=task_pb2.ControlWork(function=function, input_json=_text(given)) if function else None,
        result_schema_json=result_schema or "",
        start_time=None if start_time is None else timestamp(start_time),
        agent_pin=task_pb2.AgentPin(revision=agent_revision) if agent_revision else None,
    )


def _revision(named: str) -> tuple[str, int]:
    """Returns the function and the revision of `support@7`; 0 for `support`. Raises UsageError."""
    try:
        return read_reference(named) if named else ("", 0)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def _function(function: str, agent: str, goal: str, *, has_own: bool) -> str:
    """Returns the control function: the one that is named, or the one of the agent in Python. Raises UsageError."""
    if not agent:
        return function
    if function:
        raise click.UsageError("--agent and --function cannot be given together")
    if has_own:
        raise click.UsageError("the agent chooses its model, system prompt and tools itself")
    if not goal:
        raise click.UsageError("give a GOAL: the agent begins with it")
    return agent


def _text(argument: str) -> str:
    """Returns the argument, or standard input for `-`."""
    return sys.stdin.read().strip() if argument == "-" else argument


def _source_kind(function: str, conversation: str) -> SourceKind:
    """Returns the kind of the task's source: a conversation, a backend with a control function, or a person."""
    if conversation:
        return SourceKind.CONVERSATION
    return SourceKind.CONTROL if function else SourceKind.MANUAL


def _print_submitted(task: task_pb2.Task) -> None:
    """Prints the id on standard output, alone, for scripts; caps and advice on standard error."""
    echo(task.task_id)
    caps = "; ".join(part for part in (caps_text(task.budget), money_cap_text(task.spec)) if part)
    runs_it = f"the function {task.spec.control.function}" if task.spec.HasField("control") else model_text(task.spec)
    echo(f"Submitted, for {runs_it}. Its caps: {caps}.", err=True)
    echo(f"Watch it: tenure watch {short_id(task.task_id)}", err=True)
