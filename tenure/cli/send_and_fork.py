"""`tenure send` and `tenure fork`: a conversation with an agent at work, and one that goes on from another."""

from __future__ import annotations

import sys
from typing import Any

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import short_id, why
from tenure.cli.output import echo
from tenure.cli.parameters import DOLLARS, DURATION, NAMES, find_task, task_argument
from tenure.cli.tasks import result_schema_option
from tenure.cli.watch import watch_task
from tenure.client import Client
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api
from tenure.wire.common import duration


@click.command(short_help="Say TEXT to the agent of TASK.")
@task_argument
@click.argument("text")
@click.option(
    "--request-id", default="", help="The same id and the same text are the same message, however often sent."
)
@pass_context
def send(context: Context, task: str, text: str, request_id: str) -> None:
    """Say TEXT to the agent of TASK; `-` reads it from standard input.

    The agent reads it at its next model call: once this returns, the task does not succeed without that.
    """
    message = sys.stdin.read().strip() if text == "-" else text

    async def work(client: Client) -> None:
        response = await client.send(await find_task(client, task), message, request_id=request_id)
        if context.as_json:
            context.emit(response)
        else:
            echo(f"{short_id(response.task_id)} will read it; it is {why(response.state, response.reason, '')} now")

    context.run(work)


@click.command(short_help="Start a new task from TASK's history.")
@task_argument
@click.option("--at", type=click.IntRange(min=1), default=None, help="Cut the history after this entry.")
@click.option("--step", type=click.IntRange(min=0), default=None, help="Cut it after this step; 0: before the first.")
@click.option("--message", default="", help="What the agent reads next; `-` reads it from standard input.")
@click.option("--model", default=None, help="Another model.")
@click.option("--system", default=None, help="Another system prompt.")
@click.option("--tools", type=NAMES, default=None, help="Only these tools, a,b,c.")
@click.option("--no-tools", is_flag=True, help="No tools at all.")
@click.option("--all-tools", is_flag=True, help="All tools there are.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=None, help="Tokens of the fork's own model calls.")
@click.option("--max-cost", type=DOLLARS, default=None, help="What the fork's own may cost, in dollars: 0.50.")
@click.option("--no-max-cost", is_flag=True, help="No cap in money for the fork.")
@click.option("--max-steps", type=click.IntRange(min=1), default=None, help="Model turns of the fork's own.")
@click.option("--timeout", type=DURATION, default=None, help="From the fork to its end, for example 10m.")
@result_schema_option("Another JSON Schema that the result must fit; an empty file: any text.")
@click.option(
    "--request-id", default="", help="The same id and the same fork are the same task, however often asked for."
)
@click.option("--without-files", is_flag=True, help="Begin with an empty workspace.")
@click.option("--watch", "watched", is_flag=True, help="Stay and show its steps, to its end.")
@pass_context
def fork(context: Context, /, task: str, watched: bool, **options: Any) -> None:
    """Start a new task that goes on from TASK's history, which may be running or ended and is not touched.

    Without --at and --step the history is cut as late as possible: with --message that continues a task that has ended.
    Prints the new task's id. What is not given is as it was in TASK. It begins with a copy of TASK's
    files as they are now, wherever the history is cut.
    """
    request = fork_request(**options)

    async def work(client: Client) -> Exit:
        request.task_id = await find_task(client, task)
        forked = await client.fork(request)
        if context.as_json:
            context.emit(forked)
        elif watched:
            context.console.print(f"task {forked.task_id}", style="bold", soft_wrap=True)
        else:
            echo(forked.task_id)
            origin = f"{short_id(request.task_id)} after entry {forked.forked_from.sequence}"
            echo(f"Goes on from {origin}. See it work: tenure watch {short_id(forked.task_id)}", err=True)
        return await watch_task(context, client, forked.task_id) if watched else Exit.OK

    raise SystemExit(context.run(work))


def fork_request(
    *,
    at: int | None = None,
    step: int | None = None,
    message: str = "",
    model: str | None = None,
    system: str | None = None,
    tools: tuple[str, ...] | None = None,
    no_tools: bool = False,
    all_tools: bool = False,
    max_tokens: int | None = None,
    max_cost: int | None = None,
    no_max_cost: bool = False,
    max_steps: int | None = None,
    timeout: float | None = None,
    request_id: str = "",
    result_schema: str | None = None,
    without_files: bool = False,
) -> api.ForkTaskRequest:
    """The fork that the command line asks for, of no task yet. UsageError for what cannot be said together."""
    if at is not None and step is not None:
        raise click.UsageError("--at and --step cannot be given together")
    if max_cost and no_max_cost:
        raise click.UsageError("--max-cost and --no-max-cost cannot be given together")
    if bool(tools) + no_tools + all_tools > 1:
        raise click.UsageError("--tools, --no-tools and --all-tools cannot be given together")
    allowed = task_pb2.ToolAllowlist(names=tools or ()) if tools or no_tools else None
    limits = task_pb2.Limits(
        max_tokens=max_tokens or 0,
        max_nano_usd=max_cost or 0,
        no_money_cap=no_max_cost,
        max_steps=max_steps or 0,
        timeout=None if timeout is None else duration(timeout),
    )
    request = api.ForkTaskRequest(
        request_id=request_id,
        without_files=without_files,
        message=sys.stdin.read().strip() if message == "-" else message,
        overrides=task_pb2.ForkOverrides(
            model=model,
            system=system,
            tools=allowed,
            all_tools=all_tools,
            limits=limits,
            result_schema_json=result_schema,
        ),
    )
    if at is not None:
        request.at_sequence = at
    if step is not None:
        request.step = step
    return request
