"""`tenure tools`: which tools there are, and what has them; calls in doubt, and what a person says of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.doubts_shown import show_doubt
from tenure.cli.intervene import reason_option
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.cli.tool_sources import sources
from tenure.cli.tools_listed import list_tools, show
from tenure.cli.words import short_id, why
from tenure.client import Client
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.in_doubt import RUNNER_NOT_GONE, Abandon, Decision, DidNotHappen, Happened

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
                show_doubt(context.console, listed)
            shown = True
        if not shown:
            echo(f"no call is in doubt{'' if include_all else ' that somebody could settle'}", err=True)

    context.run(work)


@tools.command(short_help="Say what became of a call in doubt.")
@task_argument
@click.argument("call", metavar="CALL")
@click.option("--happened", "said", flag_value="happened", help="It happened: the agent reads it as a success.")
@click.option("--did-not-happen", "said", flag_value="did-not-happen", help="It did not: it is run again.")
@click.option("--abandon", "said", flag_value="abandon", help="Nobody will know: the agent is told so and goes on.")
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
    said: str | None,
    result: str,
    runner_is_gone: bool,
    attempt: int | None,
    reason: str,
) -> None:
    """Say what became of CALL of TASK, which `tenure tools in-doubt` shows. It is recorded, and the task goes on.

    Look first, outside of this system. --did-not-happen makes the call run again: if it did happen, it will have
    happened twice.
    """
    decision = _decision(said, result, runner_is_gone=runner_is_gone)

    async def work(client: Client) -> None:
        task_id = await find_task(client, task)
        call_attempt = _attempt(call, await _doubted_attempt(client, task_id, call), attempt)
        try:
            told = await client.resolve_call(task_id, call, call_attempt, decision, reason)
        except WrongState as error:
            if error.reason == RUNNER_NOT_GONE:
                raise WrongState(f"{error}: --runner-is-gone", reason=error.reason, metadata=error.metadata) from error
            raise
        if context.as_json:
            context.emit(told)
        else:
            echo(f"recorded; {short_id(task_id)} is {why(told.state, told.reason, '')}")
            for line in _next(told.task_id, len(told.calls_in_doubt)):
                echo(line)

    context.run(work)


def _decision(said: str | None, result: str, *, runner_is_gone: bool) -> Decision:
    if said is None:
        raise click.UsageError("say one of --happened, --did-not-happen and --abandon")
    if result and said != "happened":
        raise click.UsageError("--result goes with --happened")
    if runner_is_gone and said != "did-not-happen":
        raise click.UsageError("--runner-is-gone goes with --did-not-happen")
    if said == "happened":
        return Happened(_text(result))
    return DidNotHappen(runner_is_gone) if said == "did-not-happen" else Abandon()


def _text(told: str) -> str:
    """What is given, or what is in the file that is named."""
    if not told.startswith("@"):
        return told
    try:
        text = sys.stdin.read() if told == "@-" else Path(told[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"--result: {told[1:]} cannot be read: {error}") from error
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


def _attempt(call_id: str, now: int, told: int | None) -> int:
    """What was found out about one attempt is not said of another: a call that was run again has to be named so."""
    if told is None and now > 1:
        raise click.UsageError(
            f"call {call_id} was run again and is in doubt anew: look again, and say it of --attempt {now}"
        )
    return told or now or 1


def _next(task_id: str, left: int) -> Iterator[str]:
    if left:
        yield f"it still waits for a word on {left} more: tenure tools in-doubt --task {short_id(task_id)}"
    else:
        yield f"it goes on: tenure watch {short_id(task_id)}"
