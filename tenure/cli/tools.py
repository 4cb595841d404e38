"""`tenure tools`: which tools there are, and what has them; calls in doubt, and what a person says of them."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from tenure.cli.admin import reason_option
from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import (
    ago,
    arguments_text,
    count_text,
    harmless,
    make_grid,
    make_table,
    one_line,
    seconds_text,
    short_id,
    why,
)
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.client import Client
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.in_doubt import RUNNER_NOT_GONE, Abandon, Decision, DidNotHappen, Happened
from tenure.domain.states import Reason
from tenure.domain.tools import ToolSourceKind
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2, tool_pb2
from tenure.wire.common import EFFECT_CLASSES, TOOL_SOURCES, seconds

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp
    from rich.console import Console


# `tenure tools sources`: which MCP servers, providers and HTTP tools there are, and which of them is away.


@click.command(short_help="Show what has tools, and which of it is away.")
@pass_context
def sources(context: Context) -> None:
    """Show what has tools (MCP servers, providers, HTTP tools), whether it is there, and what went wrong the last time.

    It is what one replica of the tool service sees: the next time another may answer.
    """

    async def work(client: Client) -> None:
        response = await client.tool_sources()
        if context.as_json:
            context.emit(response)
        else:
            _show(context, response.sources)
            echo(f"as {response.instance} sees it")

    context.run(work)


def _show(context: Context, sources: Sequence[tool_pb2.ToolSource]) -> None:
    table = make_table("SOURCE", "KIND", "STATE", "SINCE", "TOOLS", "LAST ERROR")
    for source in sources:
        kind = TOOL_SOURCES.find(source.kind)
        # Nothing is connected to before a call of the others: nobody knows whether they would answer.
        is_linked_to = kind in (ToolSourceKind.MCP, ToolSourceKind.PROVIDER)
        table.add_row(
            source.name,
            "?" if kind is None else kind.name,
            ("linked" if source.linked else "AWAY") if is_linked_to else "",
            ago(source.change_time) if is_linked_to else "",
            f"{source.tools:,}",
            Text(_last_error(source)),
        )
    context.console.print(table)
    for source in sources:
        for problem in source.problems:
            context.console.print(f"{source.name}: {harmless(problem)}", markup=False)
        if more := source.problem_count - len(source.problems):
            context.console.print(f"{source.name}: {count_text(more, 'problem')} more", markup=False)


def _last_error(source: tool_pb2.ToolSource) -> str:
    return f"{ago(source.last_error_time)}: {harmless(source.last_error)}" if source.last_error else ""


# `tenure tools list` and `show`: which tools agents may be given, and what each of them takes.

_MOST_DESCRIPTION: Final = 160
_NEAREST: Final = 3


@click.command("list", short_help="Show the tools that agents may be given.")
@pass_context
def list_tools(context: Context) -> None:
    """Show the tools that agents may be given: what has them, and what becomes of a call whose runner dies.

    `tenure submit --tools a,b` gives a task only these. EFFECT is the effect class: PURE, IDEMPOTENT and KEYED calls
    are run again, an UNSAFE one is in doubt.
    """

    async def work(client: Client) -> None:
        tools = (await client.tools()).tools
        if context.as_json:
            for tool in tools:
                context.emit(tool)
        else:
            _show_table(context, tools)

    context.run(work)


@click.command(short_help="Show one tool: its description and the schema of its arguments.")
@click.argument("name", metavar="NAME")
@pass_context
def show(context: Context, name: str) -> None:
    """Show the tool NAME as agents get it: its description, the schema of its arguments, and its limits."""

    async def work(client: Client) -> None:
        tools = {tool.definition.name: tool for tool in (await client.tools()).tools}
        if name not in tools:
            raise NotFound(_unknown(name, list(tools)), reason="NO_SUCH_TOOL")
        if context.as_json:
            context.emit(tools[name])
        else:
            _show_tool(context, tools[name])

    context.run(work)


def _unknown(name: str, names: Sequence[str]) -> str:
    nearest = get_close_matches(name, names, _NEAREST)
    advice = f"the nearest: {', '.join(nearest)}" if nearest else "tenure tools list shows those that there are"
    return f"there is no tool {harmless(name)}; {advice}"


def _effect(tool: tool_pb2.OfferedTool) -> str:
    effect = EFFECT_CLASSES.find(tool.definition.effect_class)
    return "?" if effect is None else effect.value


def _show_table(context: Context, tools: Sequence[tool_pb2.OfferedTool]) -> None:
    table = make_table("TOOL", "EFFECT", "SOURCE", "DESCRIPTION")
    for tool in tools:
        name, source = Text(harmless(tool.definition.name)), Text(harmless(tool.source))
        description = Text(one_line(tool.definition.description, _MOST_DESCRIPTION), no_wrap=True, overflow="ellipsis")
        table.add_row(name, _effect(tool), source, description)
    context.console.print(table)


def _show_tool(context: Context, tool: tool_pb2.OfferedTool) -> None:
    definition = tool.definition
    rows = {
        "tool": harmless(definition.name),
        "source": harmless(tool.source),
        "effect": _effect(tool),
        "timeout": seconds_text(seconds(definition.timeout)),
        "output": f"at most {definition.output_limit_bytes:,} bytes are shown to the model",
    }
    grid = make_grid()
    for name, value in rows.items():
        grid.add_row(name, Text(value))
    context.console.print(grid)
    for text in (definition.description, _pretty(definition.input_schema_json)):
        context.console.print()
        context.console.print(Text(harmless(text.strip())), soft_wrap=not context.console.is_terminal)


def _pretty(schema_json: str) -> str:
    """Indented; as it came when it is no JSON."""
    try:
        return json.dumps(json.loads(schema_json), indent=2, ensure_ascii=False)
    except ValueError:
        return schema_json


# A call in doubt as an operator needs to see it, maybe in the middle of the night: what, when, where, what next.

_MOST_ARGUMENT_LINES: Final = 12


def show_call_in_doubt(console: Console, listed: admin.AdminServiceListInDoubtCallsResponse.Listed) -> None:
    """One call, and the commands that settle it if it can be settled."""
    call = listed.call
    head = harmless(f"{short_id(call.task_id)}  call {call.call_id}  {call.tool}")
    tail = f"  {EFFECT_CLASSES.to_domain(call.effect_class)}"
    console.print(Text.assemble((head, "bold"), (tail, "dim")), soft_wrap=True)
    table = make_grid()
    for name, value in _rows(console, listed):
        if value:
            table.add_row(f"  {name}", Text(harmless(value)))
    console.print(table)
    for line in _commands(listed):
        console.print(Text(harmless(f"  {line}")), soft_wrap=True)


def in_doubt_text(task: task_pb2.Task) -> str:
    """Which calls a task waits for, and where they are seen; "" for one that waits for none."""
    if task.state != task_pb2.TASK_STATE_WAITING_USER or task.reason != Reason.TOOL_IN_DOUBT:
        return ""
    calls = ", ".join(call.call_id for call in task.calls_in_doubt)
    return f"{f'{calls}: ' if calls else ''}tenure tools in-doubt --task {short_id(task.task_id)}"


def _rows(console: Console, listed: admin.AdminServiceListInDoubtCallsResponse.Listed) -> Iterator[tuple[str, str]]:
    call = listed.call
    cut = " (and more: tenure entries)" if call.arguments_truncated else ""
    yield "arguments", one_line(arguments_text(call.arguments_json), _MOST_ARGUMENT_LINES * console.width) + cut
    yield "in doubt", f"since {_when(call.doubt_time)}"
    yield "started", f"{_when(call.start_time)}, attempt {call.call_attempt}" if call.HasField("start_time") else ""
    yield "ran on", call.runner_instance or f"a process that is no longer known, {call.runner_id}"
    yield "its runner", _runner(call)
    yield "the tool said", call.note
    yield "the task", _task(listed)


def _runner(call: tool_pb2.InDoubtCall) -> str:
    if call.note or call.acts_elsewhere:
        return "the other side may still be working on it; wait longer than its longest run, then look"
    if call.runner_gone:
        return "proven gone: nothing more will come of it, so what is there now is what there is"
    return "NOT proven gone: it may only be paused or cut off, and may still make the call happen"


def _task(listed: admin.AdminServiceListInDoubtCallsResponse.Listed) -> str:
    if not listed.task_state:
        return "was pruned; nothing can be settled any more"
    reason_text = why(listed.task_state, listed.task_reason, "")
    if listed.resolvable:
        return f"{reason_text}: it waits for you"
    waits = listed.task_state == task_pb2.TASK_STATE_WAITING_USER
    return f"{reason_text}: {'it has a word on this call' if waits else 'it waits for no word on this call'}"


def _commands(listed: admin.AdminServiceListInDoubtCallsResponse.Listed) -> Iterator[str]:
    if not listed.resolvable:
        return
    call = listed.call
    again = f" --attempt {call.call_attempt}" if call.call_attempt > 1 else ""
    resolve = f"tenure tools resolve {short_id(call.task_id)} {call.call_id}{again}"
    gone = "" if call.runner_gone else " --runner-is-gone"
    answers = {
        "It happened; the agent reads your result as the call's:": '--happened --result "…" --reason "…"',
        "It did not happen; it is run again:": f'--did-not-happen{gone} --reason "…"',
        "Nobody will ever know; the agent is told so:": '--abandon --reason "…"',
    }
    if call.acts_elsewhere:
        yield "--runner-is-gone is your word that nothing over there works on it any more: nothing here can prove that."
    elif not call.runner_gone:
        yield f"Make sure that {call.runner_instance or 'its process'} is gone: end it, or start its machine anew."
    yield "Find out whether it happened, and how you know; then one of:"
    for what, message in answers.items():
        yield f"- {what}"
        yield f"  {resolve} {message}"


def _when(moment: Timestamp) -> str:
    """`2026-11-22 03:04:05, 12 min ago`."""
    if not moment.seconds:
        return "an unknown time"
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment.seconds))}, {ago(moment)}"


_MOST_RESULT_BYTES: Final = 256 * 1024


@click.group(short_help="Tools, and calls in doubt: list, show, sources, in-doubt, resolve.")
def tools() -> None:
    """See which tools there are and what has them; see which calls may or may not have happened, and settle them."""


tools.add_command(list_tools)
tools.add_command(show)
tools.add_command(sources)


@tools.command("in-doubt", short_help="Show the calls that a person has to settle.")
@click.option("--task", default="", metavar="TASK", help="Only this task's.")
@click.option("--all", "include_all", is_flag=True, help="Those too that cannot be settled any more.")
@pass_context
def in_doubt(context: Context, task: str, include_all: bool) -> None:
    """Show the calls that began, must not happen twice, and whose outcome nobody knows: the longest wait first.

    Their tasks wait until you say what became of them. docs/in_doubt.md says how to find out.
    """

    async def work(client: Client) -> None:
        task_id = await find_task(client, task) if task else ""
        shown = False
        async for listed in client.in_doubt(task_id, include_all=include_all):
            if context.as_json:
                context.emit(listed)
            else:
                if shown:
                    context.console.print()
                show_call_in_doubt(context.console, listed)
            shown = True
        if not shown:
            echo(f"no call is in doubt{'' if include_all else ' that somebody could settle'}", err=True)

    context.run(work)


@tools.command(short_help="Say what became of a call in doubt.")
@task_argument
@click.argument("call", metavar="CALL")
@click.option("--happened", "message", flag_value="happened", help="It happened: the agent reads it as a success.")
@click.option("--did-not-happen", "message", flag_value="did-not-happen", help="It did not: it is run again.")
@click.option("--abandon", "message", flag_value="abandon", help="Nobody will know: the agent is told so and goes on.")
@click.option(
    "--result", default="", metavar="TEXT|@FILE", help="With --happened: what the agent reads. @-: from stdin."
)
@click.option(
    "--runner-is-gone",
    is_flag=True,
    help="With --did-not-happen: your word that its runner is gone for good, and nobody elsewhere works on it.",
)
@click.option(
    "--attempt", type=click.IntRange(min=1), default=None, help="Needed when it is in doubt for another time."
)
@reason_option
@pass_context
def resolve(
    context: Context,
    /,
    task: str,
    call: str,
    message: str | None,
    result: str,
    runner_is_gone: bool,
    attempt: int | None,
    reason: str,
) -> None:
    """Say what became of CALL of TASK, which `tenure tools in-doubt` shows. It is recorded, and the task goes on.

    Look first, outside of this system. --did-not-happen makes the call run again: if it did happen, it will have
    happened twice.
    """
    decision = _decision(message, result, runner_is_gone=runner_is_gone)

    async def work(client: Client) -> None:
        task_id = await find_task(client, task)
        call_attempt = _attempt(call, await _doubted_attempt(client, task_id, call), attempt)
        try:
            response = await client.resolve_call(task_id, call, call_attempt, decision, reason)
        except WrongState as error:
            if error.reason == RUNNER_NOT_GONE:
                raise WrongState(f"{error}: --runner-is-gone", reason=error.reason, metadata=error.metadata) from error
            raise
        if context.as_json:
            context.emit(response)
        else:
            echo(f"recorded; {short_id(task_id)} is {why(response.state, response.reason, '')}")
            for line in _next(response.task_id, len(response.calls_in_doubt)):
                echo(line)

    context.run(work)


def _decision(message: str | None, result: str, *, runner_is_gone: bool) -> Decision:
    if message is None:
        raise click.UsageError("say one of --happened, --did-not-happen and --abandon")
    if result and message != "happened":
        raise click.UsageError("--result goes with --happened")
    if runner_is_gone and message != "did-not-happen":
        raise click.UsageError("--runner-is-gone goes with --did-not-happen")
    if message == "happened":
        return Happened(_text(result))
    return DidNotHappen(runner_is_gone) if message == "did-not-happen" else Abandon()


def _text(message: str) -> str:
    """What is given, or what is in the file that is named."""
    if not message.startswith("@"):
        return message
    try:
        text = sys.stdin.read() if message == "@-" else Path(message[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--result: {message[1:]} cannot be read: {error}") from error
    if len(text.encode()) > _MOST_RESULT_BYTES:
        raise click.UsageError(f"--result: more than {_MOST_RESULT_BYTES // 1024} KiB")
    return text


async def _doubted_attempt(client: Client, task_id: str, call_id: str) -> int:
    """Of the tools' list; else of what the task says that it waits for: the tools may have lost the call. 0: any."""
    calls = {one.call.call_id: one.call.call_attempt async for one in client.in_doubt(task_id, include_all=True)}
    if call_id not in calls:
        waited_for = (await client.get(task_id)).calls_in_doubt
        calls |= {one.call_id: one.call_attempt for one in waited_for}
    if call_id in calls:
        return calls[call_id]
    others = ", ".join(calls)
    there = f"in doubt: {others}" if others else "none of its calls is: it was settled, or its outcome came late"
    raise NotFound(f"call {call_id} of {short_id(task_id)} is not in doubt; {there}", reason="NOT_IN_DOUBT")


def _attempt(call_id: str, now: int, given_attempt: int | None) -> int:
    """What was found out about one attempt is not said of another: a call that was run again has to be named so."""
    if given_attempt is None and now > 1:
        raise click.UsageError(
            f"call {call_id} was run again and is in doubt anew: look again, and say it of --attempt {now}"
        )
    return given_attempt or now or 1


def _next(task_id: str, left: int) -> Iterator[str]:
    if left:
        yield f"it still waits for a word on {left} more: tenure tools in-doubt --task {short_id(task_id)}"
    else:
        yield f"it goes on: tenure watch {short_id(task_id)}"
