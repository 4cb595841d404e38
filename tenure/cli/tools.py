"""`tenure tools`: the tools and their sources; the calls in doubt and their resolutions."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from rich.text import Text

from tenure.cli.admin import reason_option
from tenure.cli.context import Context, with_client
from tenure.cli.effects import effects
from tenure.cli.formatting import (
    ago,
    arguments_text,
    count_text,
    cut_text,
    harmless,
    make_grid,
    make_list,
    make_table,
    one_line,
    seconds_text,
    short_id,
    why,
)
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.cli.questions import confirm, is_interactive, read_standard_input
from tenure.cli.receipts import receipt, write_receipts
from tenure.cli.tool_rules import rules
from tenure.client import Client
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.in_doubt import RUNNER_NOT_GONE, Abandon, Decision, DidNotHappen, Happened
from tenure.domain.states import Reason
from tenure.domain.tools import ToolSourceKind
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import task_pb2, tool_pb2
from tenure.wire.common import EFFECT_CLASSES, EFFECT_SCOPES, ON_REPEAT, TOOL_SOURCES, seconds
from tenure.wire.tool import decision_to_wire

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp
    from rich.console import Console


# `tenure tools sources`.


@click.command(short_help="List the tool sources, and which of them is away.")
@with_client
async def sources(context: Context, client: Client) -> None:
    """List the tool sources (MCP servers, providers, HTTP tools), whether each is linked, and its last error.

    One replica of the tool service answers, for itself; the next time another replica may answer.
    """
    response = await client.admin.ListToolSources(admin.ListToolSourcesRequest())
    if context.as_json:
        context.emit(response)
    else:
        _show(context, response.sources)
        echo(f"as seen by {response.instance}")


def _show(context: Context, sources: Sequence[tool_pb2.ToolSource]) -> None:
    table = make_table("SOURCE", "KIND", "STATE", "SINCE", "TOOLS", "LAST ERROR")
    for source in sources:
        kind = TOOL_SOURCES.find(source.kind)
        # The other kinds have no connection before a call, so it is unknown whether they would answer.
        has_link = kind in (ToolSourceKind.MCP, ToolSourceKind.PROVIDER)
        table.add_row(
            source.name,
            "?" if kind is None else kind.name,
            ("linked" if source.linked else "AWAY") if has_link else "",
            ago(source.change_time) if has_link else "",
            f"{source.tools:,}",
            Text(_last_error(source)),
        )
    context.console.print(table)
    for source in sources:
        for problem in source.problems:
            context.console.print(f"{source.name}: {harmless(problem)}", markup=False)
        if more := source.problem_count - len(source.problems):
            context.console.print(f"{source.name}: {count_text(more, 'problem')} more", markup=False)
    for source in sources:
        _show_held(context, source, source.held)


def _show_held(context: Context, source: tool_pb2.ToolSource, held: Sequence[tool_pb2.HeldTool]) -> None:
    for tool in held:
        state = "has changed since it was accepted" if tool.accepted_sha256 else "is new"
        context.console.print()
        context.console.print(f"{source.name}: the tool {harmless(tool.name)} {state}, and is held:", markup=False)
        context.console.print(Text(harmless(tool.difference)), soft_wrap=True)


# `tenure tools accept`.


@click.command(short_help="Accept held tools of a source, as they are described now.")
@click.argument("source", metavar="SOURCE")
@click.argument("tool", metavar="[TOOL]", default="")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_client
async def accept(context: Context, client: Client, source: str, tool: str, *, yes: bool) -> None:
    """Accept TOOL of SOURCE, or all held tools of SOURCE, after showing how they differ from what was accepted before.

    A description is text that agents follow: read the difference. Only the definitions shown are accepted.
    """
    if not yes and not is_interactive():
        raise click.UsageError("outside of a terminal give --yes; `tenure tools sources` shows the differences")

    held = _held_tools((await client.admin.ListToolSources(admin.ListToolSourcesRequest())).sources, source, tool)
    if not context.as_json:
        _show_held(context, tool_pb2.ToolSource(name=source), held)
    if not yes:
        await confirm(f"accept {count_text(len(held), 'tool')} of {source}?")
    seen = [tool_pb2.SeenTool(name=one.name, sha256=one.sha256) for one in held]
    await client.admin.AcceptTools(admin.AcceptToolsRequest(name=source, tools=seen))
    context.say(
        {"source": source, "accepted": [one.name for one in held]},
        f"accepted: {', '.join(harmless(one.name) for one in held)}",
    )


def _held_tools(sources: Sequence[tool_pb2.ToolSource], name: str, tool: str) -> list[tool_pb2.HeldTool]:
    """Returns the held tools to accept. Raises NotFound if there are none."""
    held = [one for source in sources if source.name == name for one in source.held if tool in ("", one.name)]
    if not held:
        message = f"{harmless(name)} has no held tool {harmless(tool)}".rstrip() + "; `tenure tools sources` shows them"
        raise NotFound(message, reason="NO_HELD_TOOL")
    return held


def _last_error(source: tool_pb2.ToolSource) -> str:
    return f"{ago(source.last_error_time)}: {harmless(source.last_error)}" if source.last_error else ""


# `tenure tools list` and `tenure tools show`.

_MAX_DESCRIPTION: Final = 160
_NEAREST: Final = 3


@click.command("list", short_help="List the tools, with source and effect class.")
@with_client
async def list_tools(context: Context, client: Client) -> None:
    """List the tools of all sources; with -v as `tenure tools show` does, with the schemas of their arguments.

    `tenure submit --tools a,b` gives an agent only these. EFFECT is the effect class. When the runner of a call dies, a
    PURE, IDEMPOTENT or KEYED call runs again; an UNSAFE call is in doubt.
    """
    tools = (await client.tools()).tools
    if context.as_json:
        for tool in tools:
            context.emit(tool)
    elif context.is_verbose:
        for index, tool in enumerate(tools):
            if index:
                context.console.print()
            _show_tool(context, tool)
    else:
        _show_table(context, tools)


@click.command(short_help="Show one tool: its description and the schema of its arguments.")
@click.argument("name", metavar="NAME")
@with_client
async def show(context: Context, client: Client, name: str) -> None:
    """Show the tool NAME as agents get it: its description, the schema of its arguments and its limits."""
    tools = {tool.definition.name: tool for tool in (await client.tools()).tools}
    if name not in tools:
        raise NotFound(_unknown(name, list(tools)), reason="NO_SUCH_TOOL")
    context.show(tools[name], _show_tool)


def _unknown(name: str, names: Sequence[str]) -> str:
    nearest = get_close_matches(name, names, _NEAREST)
    advice = f"the nearest: {', '.join(nearest)}" if nearest else "`tenure tools list` shows all tools"
    return f"tool {harmless(name)} not found; {advice}"


def _effect(tool: tool_pb2.OfferedTool) -> str:
    effect = EFFECT_CLASSES.find(tool.definition.effect_class)
    return "?" if effect is None else effect.value


def _show_table(context: Context, tools: Sequence[tool_pb2.OfferedTool]) -> None:
    table = make_list("TOOL", "EFFECT", "TIMEOUT", "SOURCE", "DESCRIPTION")
    for tool in tools:
        name, source = Text(harmless(tool.definition.name)), Text(harmless(tool.source))
        description = cut_text(tool.definition.description, _MAX_DESCRIPTION)
        table.add_row(name, _effect(tool), seconds_text(seconds(tool.definition.timeout)), source, description)
    context.console.print(table)


def _show_tool(context: Context, tool: tool_pb2.OfferedTool) -> None:
    definition = tool.definition
    rows = {
        "tool": harmless(definition.name),
        "source": harmless(tool.source),
        "effect": _effect(tool),
        "timeout": seconds_text(seconds(definition.timeout)),
        **_effect_key(definition),
        "output": f"the model gets at most {definition.output_limit_bytes:,} bytes",
    }
    context.console.print(make_grid((name, Text(value)) for name, value in rows.items()))
    for text in (definition.description, _pretty(definition.input_schema_json)):
        context.console.print()
        context.console.print(Text(harmless(text.strip())), soft_wrap=not context.console.is_terminal)


def _effect_key(definition: tool_pb2.ToolDefinition) -> dict[str, str]:
    if not definition.HasField("effect_key"):
        return {}
    key = definition.effect_key
    scope = EFFECT_SCOPES.to_domain(key.scope).lower()
    period = f" for {seconds_text(seconds(key.period))}" if key.HasField("period") else ""
    repeat = ON_REPEAT.to_domain(key.on_repeat).lower()
    return {"effect key": harmless(f"{', '.join(key.arguments)}; once in its {scope}{period}; on a repeat: {repeat}")}


def _pretty(schema_json: str) -> str:
    """Returns the schema indented; text that is not JSON unchanged."""
    try:
        return json.dumps(json.loads(schema_json), indent=2, ensure_ascii=False)
    except ValueError:
        return schema_json


# Calls in doubt. An operator reads this in the middle of the night: what, when, where, and the next commands.

_MAX_ARGUMENT_LINES: Final = 12


def show_call_in_doubt(console: Console, listed: admin.ListInDoubtCallsResponse.Listed) -> None:
    """Prints one call in doubt, and the commands that resolve it, if its task waits for a resolution."""
    call = listed.call
    head = harmless(f"{short_id(call.task_id)}  call {call.call_id}  {call.tool}")
    tail = f"  {EFFECT_CLASSES.to_domain(call.effect_class)}"
    console.print(Text.assemble((head, "bold"), (tail, "dim")), soft_wrap=True)
    console.print(make_grid((f"  {name}", Text(harmless(value))) for name, value in _rows(console, listed)))
    for line in _commands(listed):
        console.print(Text(harmless(f"  {line}")), soft_wrap=True)


def in_doubt_text(task: task_pb2.Task) -> str:
    """Returns the calls in doubt of a task with the command that shows them; "" if the task waits for no resolution."""
    if task.state != task_pb2.TASK_STATE_WAITING_USER or task.reason != Reason.TOOL_IN_DOUBT:
        return ""
    calls = ", ".join(call.call_id for call in task.calls_in_doubt)
    return f"{f'{calls}: ' if calls else ''}tenure tools in-doubt --task {short_id(task.task_id)}"


def _rows(console: Console, listed: admin.ListInDoubtCallsResponse.Listed) -> Iterator[tuple[str, str]]:
    call = listed.call
    cut = " (and more: tenure tasks entries)" if call.arguments_truncated else ""
    yield "arguments", one_line(arguments_text(call.arguments_json), _MAX_ARGUMENT_LINES * console.width) + cut
    yield "in doubt", f"since {_when(call.doubt_time)}"
    yield "started", f"{_when(call.start_time)}, attempt {call.call_attempt}" if call.HasField("start_time") else ""
    yield "ran on", call.runner_instance or f"a runner that is no longer recorded, {call.runner_id}"
    yield "its runner", _runner(call)
    yield "the tool said", call.note
    yield "the task", _task(listed)


def _runner(call: tool_pb2.InDoubtCall) -> str:
    if call.note or call.acts_elsewhere:
        return "the other side may still be working on it; wait longer than its longest run, then check"
    if call.runner_gone:
        return "proven gone: it can do nothing more, so the effect that you find now is final"
    return "NOT proven gone: it may only be paused or cut off, and may still execute the call"


def _task(listed: admin.ListInDoubtCallsResponse.Listed) -> str:
    if not listed.task_state:
        return "pruned; the call cannot be resolved any more"
    reason_text = why(listed.task_state, listed.task_reason, "")
    if listed.resolvable:
        return f"{reason_text}: it waits for your resolution"
    waits = listed.task_state == task_pb2.TASK_STATE_WAITING_USER
    return f"{reason_text}: {'this call is resolved' if waits else 'this call needs no resolution'}"


def _commands(listed: admin.ListInDoubtCallsResponse.Listed) -> Iterator[str]:
    if not listed.resolvable:
        return
    call = listed.call
    attempt = f" --attempt {call.call_attempt}" if call.call_attempt > 1 else ""
    resolve = f"tenure tools resolve {short_id(call.task_id)} {call.call_id}{attempt}"
    gone = "" if call.runner_gone else " --runner-is-gone"
    resolutions = {
        "It happened; the agent reads your result as the result of the call:": '--happened --result "…" --reason "…"',
        "It did not happen; the call runs again:": f'--did-not-happen{gone} --reason "…"',
        "It cannot be found out; the agent reads that the call is in doubt:": '--abandon --reason "…"',
    }
    if call.acts_elsewhere:
        yield "--runner-is-gone states that the other side no longer works on the call: Tenure cannot prove that."
    elif not call.runner_gone:
        yield f"Make sure that {call.runner_instance or 'its runner'} is gone: kill the process or restart its machine."
    yield "Find out whether it happened, and note your evidence; then run one of:"
    for description, arguments in resolutions.items():
        yield f"- {description}"
        yield f"  {resolve} {arguments}"


def _when(moment: Timestamp) -> str:
    """Returns `2026-11-22 03:04:05, 12 min ago`, in the local time zone."""
    if not moment.seconds:
        return "an unknown time"
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(moment.seconds))}, {ago(moment)}"


_MAX_RESULT_BYTES: Final = 256 * 1024


@click.group(short_help="List tools and their sources; resolve calls in doubt.")
def tools() -> None:
    """List the tools and their sources; list the calls in doubt and resolve them."""


tools.add_command(list_tools)
tools.add_command(show)
tools.add_command(sources)
tools.add_command(accept)
tools.add_command(receipt)
tools.add_command(write_receipts)
tools.add_command(effects)
tools.add_command(rules)


@tools.command("in-doubt", short_help="List the calls in doubt that a person has to resolve.")
@click.option("--task", default="", metavar="TASK", help="Only calls of this task.")
@click.option("--all", "include_all", is_flag=True, help="Also calls that cannot be resolved any more.")
@with_client
async def in_doubt(context: Context, client: Client, task: str, include_all: bool) -> None:
    """List the calls in doubt: UNSAFE calls that started and whose outcome is unknown. The oldest is first.

    Their tasks wait until you resolve them. docs/in_doubt.md describes how to find out what happened.
    """
    task_id = await find_task(client, task) if task else ""
    has_calls = False
    async for listed in client.in_doubt(task_id, include_all=include_all):
        if context.as_json:
            context.emit(listed)
        else:
            if has_calls:
                context.console.print()
            show_call_in_doubt(context.console, listed)
        has_calls = True
    if not has_calls:
        echo(f"no call in doubt{'' if include_all else ' waits for a resolution'}", err=True)


@tools.command(short_help="Resolve a call in doubt: it happened, it did not, or abandon it.")
@task_argument
@click.argument("call", metavar="CALL")
@click.option("--happened", "resolution", flag_value="happened", help="It happened: the agent reads a success.")
@click.option(
    "--did-not-happen", "resolution", flag_value="did-not-happen", help="It did not happen: the call runs again."
)
@click.option("--abandon", "resolution", flag_value="abandon", help="It cannot be found out: the agent reads IN_DOUBT.")
@click.option(
    "--result",
    default="",
    metavar="TEXT|@FILE",
    help="With --happened: the result that the agent reads. @-: from standard input.",
)
@click.option(
    "--runner-is-gone",
    is_flag=True,
    help="With --did-not-happen: you state that the runner of the call is gone and that no other system works on it.",
)
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    default=None,
    help="The call attempt; required if the call ran again and is in doubt again.",
)
@reason_option
@with_client
async def resolve(
    context: Context,
    client: Client,
    /,
    task: str,
    call: str,
    resolution: str | None,
    result: str,
    runner_is_gone: bool,
    attempt: int | None,
    reason: str,
) -> None:
    """Resolve CALL of TASK, which `tenure tools in-doubt` shows. The resolution is recorded and the task continues.

    First check the effect in the system where it would be. --did-not-happen runs the call again: if the effect did
    happen, it then happens twice.
    """
    decision = _decision(resolution, result, runner_is_gone=runner_is_gone)

    task_id = await find_task(client, task)
    call_attempt = _attempt(call, await _doubted_attempt(client, task_id, call), attempt)
    try:
        request = admin.ResolveInDoubtCallRequest(
            task_id=task_id,
            call_id=call,
            call_attempt=call_attempt,
            decision=decision_to_wire(decision),
            reason=reason,
        )
        response = (await client.admin.ResolveInDoubtCall(request)).task
    except WrongState as error:
        if error.reason == RUNNER_NOT_GONE:
            raise WrongState(f"{error}: --runner-is-gone", reason=error.reason, metadata=error.metadata) from error
        raise
    if context.as_json:
        context.emit(response)
    else:
        echo(f"resolved; {short_id(task_id)} is {why(response.state, response.reason, '')}")
        for line in _next(response.task_id, len(response.calls_in_doubt)):
            echo(line)


def _decision(resolution: str | None, result: str, *, runner_is_gone: bool) -> Decision:
    if resolution is None:
        raise click.UsageError("give one of --happened, --did-not-happen and --abandon")
    if result and resolution != "happened":
        raise click.UsageError("--result works only with --happened")
    if runner_is_gone and resolution != "did-not-happen":
        raise click.UsageError("--runner-is-gone works only with --did-not-happen")
    if resolution == "happened":
        return Happened(_text(result))
    return DidNotHappen(runner_is_gone) if resolution == "did-not-happen" else Abandon()


def _text(argument: str) -> str:
    """Returns the argument, or the content of the file that `@FILE` names; `@-` is standard input."""
    if not argument.startswith("@"):
        return argument
    try:
        text = read_standard_input() if argument == "@-" else Path(argument[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--result: cannot read {argument[1:]}: {error}") from error
    if len(text.encode()) > _MAX_RESULT_BYTES:
        raise click.UsageError(f"--result: the text has more than {_MAX_RESULT_BYTES // 1024} KiB; give a shorter one")
    return text


async def _doubted_attempt(client: Client, task_id: str, call_id: str) -> int:
    """Returns the call attempt that is in doubt; 0 if it is not recorded.

    Reads the tool service's list first, then the task's wait: the tool service may have lost the call. Raises NotFound
    if neither has the call in doubt.
    """
    calls = {one.call.call_id: one.call.call_attempt async for one in client.in_doubt(task_id, include_all=True)}
    if call_id not in calls:
        awaited_calls = (await client.get(task_id)).calls_in_doubt
        calls |= {one.call_id: one.call_attempt for one in awaited_calls}
    if call_id in calls:
        return calls[call_id]
    others = ", ".join(calls)
    none = "none of its calls is: it was resolved, its outcome came late, or it has to be taken up by a worker first"
    reason = f"in doubt: {others}" if others else f"{none} (tenure explain {short_id(task_id)})"
    raise NotFound(f"call {call_id} of {short_id(task_id)} is not in doubt; {reason}", reason="NOT_IN_DOUBT")


def _attempt(call_id: str, present_attempt: int, given_attempt: int | None) -> int:
    """Returns the call attempt to resolve. Raises UsageError without --attempt for a call that ran again.

    Evidence about one call attempt must not resolve another.
    """
    if given_attempt is None and present_attempt > 1:
        raise click.UsageError(
            f"call {call_id} ran again and is in doubt again: check its effect, then give --attempt {present_attempt}"
        )
    return given_attempt or present_attempt or 1


def _next(task_id: str, left: int) -> Iterator[str]:
    if left:
        yield f"it still waits for {count_text(left, 'resolution')}: tenure tools in-doubt --task {short_id(task_id)}"
    else:
        yield f"it continues: tenure watch {short_id(task_id)}"
