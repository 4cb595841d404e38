"""`tenure files`: lists, downloads and prints the files of a task's workspace."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path, PurePosixPath

import click
from rich.text import Text

from tenure.cli.context import Context, pass_context, with_client
from tenure.cli.formatting import ago, make_table, printable
from tenure.cli.output import echo, file_output
from tenure.cli.parameters import find_task, task_argument
from tenure.client import Client
from tenure.client.files import download_file, read_file
from tenure.domain.texts import bytes_text
from tenure.v1 import task_service_pb2, workspace_pb2

_path = click.argument("path")
_MARKS = {workspace_pb2.FILE_KIND_DIRECTORY: "/", workspace_pb2.FILE_KIND_OTHER: " (not a regular file)"}


@click.group()
def files() -> None:
    """List and download the files of a task's workspace.

    The agent chose their names and contents: do not trust them. They stay until the task is pruned.
    """


@files.command("list", short_help="List the files of TASK's workspace, and how full it is.")
@task_argument
@click.argument("path", default="")
@with_client
async def list_files(context: Context, client: Client, task: str, path: str) -> None:
    """List the files of TASK's workspace, or those below PATH in it, and how full the workspace is."""
    task_id = await find_task(client, task)
    usage = workspace_pb2.WorkspaceUsage()
    listed: list[workspace_pb2.WorkspaceFile] = []
    request = task_service_pb2.ListFilesRequest(task_id=task_id, path=path)
    async for page in client.pages(client.tasks.ListFiles, request):
        usage.MergeFrom(page.usage)
        if not context.as_json:
            listed += page.files
        for file in page.files if context.as_json else ():
            context.emit(file)
    if not context.as_json:
        _show(context, listed, usage)


@files.command("get")
@task_argument
@_path
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=None,
    help="The file or directory to write to; an existing file is replaced. Default: the file's own name in the"
    " working directory, which must not exist.",
)
@pass_context
def get_file(context: Context, task: str, path: str, output: Path | None) -> None:
    """Download the file PATH of TASK's workspace. The local file appears when the download is complete."""
    target = output or Path(PurePosixPath(path).name or "file")
    if output is not None and output.is_dir():
        target = output / PurePosixPath(path).name
    elif output is None and target.exists():
        raise click.UsageError(f"{target} exists; name another file with -o, or the same one to replace it")
    if not target.parent.is_dir():
        raise click.UsageError(f"{target.parent} is not a directory")

    async def work(client: Client) -> None:
        task_id = await find_task(client, task)
        try:
            size_bytes = await download_file(client.tasks, task_id, path, target)
        except OSError as error:
            raise click.ClickException(f"{target} cannot be written: {error.strerror or error}") from error
        context.say({"path": str(target), "size_bytes": size_bytes}, f"{target} ({bytes_text(size_bytes)})")

    context.run(work)


@files.command("cat", short_help="Print the file PATH of TASK's workspace.")
@task_argument
@_path
@pass_context
def cat_file(context: Context, task: str, path: str) -> None:
    """Print the file PATH of TASK's workspace on standard output: byte for byte, but on a terminal with control
    characters escaped.
    """
    write, flush = file_output()

    async def work(client: Client) -> None:
        async with aclosing(read_file(client.tasks, await find_task(client, task), path)) as parts:
            async for part in parts:
                write(part)
        flush()

    context.run(work)


def _show(context: Context, listed: list[workspace_pb2.WorkspaceFile], usage: workspace_pb2.WorkspaceUsage) -> None:
    if listed:
        table = make_table("FILE", "SIZE", "WRITTEN")
        for file in listed:
            size = bytes_text(file.size_bytes) if file.kind == workspace_pb2.FILE_KIND_FILE else ""
            table.add_row(Text(_name(file)), size, ago(file.modified_at))
        context.console.print(table)
    else:
        echo("no files")
    least = "at least " if usage.incomplete else ""
    used = f"{least}{bytes_text(usage.used_bytes)} of {bytes_text(usage.max_bytes)}"
    echo(f"{used}, {least}{usage.used_files:,} of {usage.max_files:,} files", err=True)


def _name(file: workspace_pb2.WorkspaceFile) -> str:
    """Returns the name with control characters escaped: an agent chose it, and it must not act on the terminal."""
    name = printable(file.path) + _MARKS.get(file.kind, "")
    if file.kind == workspace_pb2.FILE_KIND_LINK:
        name = f"{name} -> {printable(file.link_target)}"
    return f"{name} (the name is not UTF-8: cannot be downloaded)" if file.unreadable_name else name
