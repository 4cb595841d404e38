"""`tenure tasks send` adds a message to a live task; `tenure fork` creates a task from another task's history."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tenure.cli.context import Context, pass_context, with_client
from tenure.cli.exit_codes import Exit
from tenure.cli.formatting import short_id, why
from tenure.cli.group import SectionedCommand
from tenure.cli.output import echo
from tenure.cli.parameters import MESSAGE_FILES, find_task, task_argument
from tenure.cli.questions import read_standard_input
from tenure.cli.task_options import FORK_TASK_OPTIONS
from tenure.cli.tasks import RESULT_SCHEMA
from tenure.cli.watch import watch_task
from tenure.client import Client
from tenure.sdk.option_values import files as input_files
from tenure.sdk.submit_request import is_override, put_field
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as api


@click.command(short_help="Send a message to the agent of TASK.")
@task_argument
@click.argument("text")
@click.option("--file", "files", **MESSAGE_FILES)
@click.option(
    "--interrupt",
    is_flag=True,
    help="Stop the model call that runs, which is billed to that point, and send TEXT to the live sub-agents, too.",
)
@click.option(
    "--request-id",
    default="",
    help="Makes the command safe to repeat: a repeat with the same id adds no second message.",
)
@pass_context
def send(context: Context, task: str, text: str, files: tuple[Path, ...], interrupt: bool, request_id: str) -> None:
    """Send the message TEXT to the agent of TASK; `-` reads TEXT from standard input.

    The agent reads it at its next model call. Once this command has returned, the task cannot succeed before that.
    With --interrupt the agent makes a model call that runs again, with TEXT; a tool call that runs goes on.
    """
    message = read_standard_input().strip() if text == "-" else text
    sent = input_files("--file", files)

    async def work(client: Client) -> None:
        task_id = await find_task(client, task)
        response = await client.send(task_id, message, files=sent, request_id=request_id, interrupt=interrupt)
        context.say(response, f"sent; {short_id(response.task_id)} is {why(response.state, response.reason, '')}")

    context.run(work)


@click.command(cls=SectionedCommand, short_help="Create a new task from TASK's history.")
@task_argument
@click.option("--at", type=click.IntRange(min=1), default=None, help="Copy the history up to this sequence.")
@click.option(
    "--step", type=click.IntRange(min=0), default=None, help="Copy the history up to this step; 0: without any step."
)
@click.option("--message", default="", help="A message that the agent reads next; `-` reads it from standard input.")
@click.option("--file", "files", **MESSAGE_FILES)
@click.option("--no-tools", is_flag=True, help="Give the agent no tools.")
@click.option("--all-tools", is_flag=True, help="Give the agent all tools.")
@click.option(
    "--result-schema", **RESULT_SCHEMA, help="A file with another JSON Schema of the result; an empty file: any text."
)
@click.option(
    "--revision", "agent_revision", type=click.IntRange(min=1), default=None, help="Another revision of TASK's agent."
)
@click.option(
    "--request-id",
    default="",
    help="Makes the command safe to repeat: a repeat with the same id creates no second task.",
)
@click.option("--without-files", is_flag=True, help="Start with an empty workspace.")
@click.option("--watch", "watched", is_flag=True, help="Show the task's steps until it ends.")
@with_client
async def fork(context: Context, client: Client, /, task: str, watched: bool, **options: Any) -> Exit:
    """Create a new task that continues from TASK's history. TASK may be live or ended; it does not change.

    Without --at and --step as much history as possible is copied: with --message that continues an ended task.

    Options that are not given keep the values of TASK; of the parameters of the model, from --temperature to
    --extra-body, one that is given replaces all. The limits are those of the fork itself, whose usage begins at
    zero. It starts with a copy of TASK's files as they are now, not as they were at the cut. Prints the new task's id.
    """
    request = fork_request(**options)
    request.task_id = await find_task(client, task)
    forked = await client.fork(request)
    if context.as_json:
        context.emit(forked)
    elif watched:
        context.console.print(f"task {forked.task_id}", style="bold", soft_wrap=True)
    else:
        echo(forked.task_id)
        origin = f"{short_id(request.task_id)} after entry {forked.forked_from.sequence}"
        echo(f"Continues from {origin}. Watch it: tenure watch {short_id(forked.task_id)}", err=True)
    return await watch_task(context, client, forked.task_id) if watched else Exit.OK


fork.params[-1:-1] = FORK_TASK_OPTIONS


def fork_request(
    *,
    at: int | None = None,
    step: int | None = None,
    message: str = "",
    no_tools: bool = False,
    all_tools: bool = False,
    request_id: str = "",
    result_schema: str | None = None,
    files: tuple[Path, ...] = (),
    without_files: bool = False,
    agent_revision: int | None = None,
    **options: Any,
) -> api.ForkTaskRequest:
    """Returns the fork that the options describe, without its task id. Raises UsageError for options that exclude each
    other.
    """
    if at is not None and step is not None:
        raise click.UsageError("--at and --step cannot be given together")
    if options.get("max_cost") and options.get("no_max_cost"):
        raise click.UsageError("--max-cost and --no-max-cost cannot be given together")
    if bool(options.get("tools")) + no_tools + all_tools > 1:
        raise click.UsageError("--tools, --no-tools and --all-tools cannot be given together")
    request = api.ForkTaskRequest(
        request_id=request_id,
        without_files=without_files,
        message=read_standard_input().strip() if message == "-" else message,
        files=input_files("--file", files),
        overrides=task_pb2.ForkOverrides(
            tools=task_pb2.ToolAllowlist() if no_tools else None,
            all_tools=all_tools,
            result_schema_json=result_schema,
            agent_revision=agent_revision or 0,
        ),
    )
    for option in FORK_TASK_OPTIONS:
        value = options.get(option.name or "")
        if is_override(option.path, value):
            put_field(request.overrides, option.path, option.to_wire(value))
    if at is not None:
        request.at_sequence = at
    if step is not None:
        request.step = step
    return request
