"""`tenure files`: what an agent has in its workspace, and how to get it."""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path, PurePosixPath

import click
from rich.text import Text

from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import ago, bytes_text, make_table, printable
from tenure.cli.output import echo
from tenure.cli.parameters import find_task, task_argument
from tenure.client import Client
from tenure.v1 import workspace_pb2

_path = click.argument("path")
_MARKS = {workspace_pb2.FILE_KIND_DIRECTORY: "/", workspace_pb2.FILE_KIND_OTHER: " (no regular file)"}


@click.group()
def files() -> None:
    """The files of a task: list them, get them.

    They are the agent's: names and contents may be anything. They stay as long as the task is kept.
    """


@files.command("list", short_help="List what is there, and how full it is.")
@task_argument
@click.argument("path", default="")
@pass_context
def list_files(context: Context, task: str, path: str) -> None:
    """List what is in TASK's workspace, or below PATH in it, and how full it is."""

    async def work(client: Client) -> None:
        task_id = await find_task(client, task)
        usage = workspace_pb2.WorkspaceUsage()
        listed: list[workspace_pb2.WorkspaceFile] = []
        async for page in client.list_files(task_id, path):
            usage.MergeFrom(page.usage)
            if not context.as_json:
                listed += page.files
            for file in page.files if context.as_json else ():
                context.emit(file)
        if not context.as_json:
            _show(context, listed, usage)

    context.run(work)


@files.command("get")
@task_argument
@_path
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    help="Where to; what is there is replaced. Default: the file's own name here, if nothing has it.",
)
@pass_context
def get_file(context: Context, task: str, path: str, output: Path | None) -> None:
    """Get the file PATH of TASK's workspace. It appears when all of it is there."""
    target = output or Path(PurePosixPath(path).name or "file")
    if output is not None and output.is_dir():
        target = output / PurePosixPath(path).name
    elif output is None and target.exists():
        raise click.UsageError(f"{target} is there already; say with -o where to write")
    if not target.parent.is_dir():
        raise click.UsageError(f"{target.parent} is no directory")

    async def work(client: Client) -> None:
        size_bytes = await client.download_file(await find_task(client, task), path, target)
        if context.as_json:
            context.emit({"path": str(target), "size_bytes": size_bytes})
        else:
            echo(f"{target} ({bytes_text(size_bytes)})")

    context.run(work)


@files.command("cat")
@task_argument
@_path
@pass_context
def cat_file(context: Context, task: str, path: str) -> None:
    """Print the file PATH of TASK's workspace, byte by byte as it is."""

    async def work(client: Client) -> None:
        async with aclosing(client.read_file(await find_task(client, task), path)) as parts:
            async for part in parts:
                sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()

    context.run(work)


def _show(context: Context, listed: list[workspace_pb2.WorkspaceFile], usage: workspace_pb2.WorkspaceUsage) -> None:
    if listed:
        table = make_table("FILE", "SIZE", "WRITTEN")
        for file in listed:
            size = bytes_text(file.size_bytes) if file.kind == workspace_pb2.FILE_KIND_FILE else ""
            table.add_row(Text(_name(file)), size, ago(file.modified_at))
        context.console.print(table)
    else:
        echo("There are no files.")
    least = "at least " if usage.incomplete else ""
    used = f"{least}{bytes_text(usage.used_bytes)} of {bytes_text(usage.max_bytes)}"
    echo(f"{used}, {least}{usage.used_files:,} of {usage.max_files:,} files", err=True)


def _name(file: workspace_pb2.WorkspaceFile) -> str:
    """Agents choose names: nothing of them may move a cursor or look like markup."""
    name = printable(file.path) + _MARKS.get(file.kind, "")
    if file.kind == workspace_pb2.FILE_KIND_LINK:
        name = f"{name} -> {printable(file.link_target)}"
    return f"{name} (not UTF-8: cannot be asked for)" if file.unreadable_name else name
