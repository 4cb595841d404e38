"""`tenure tasks export`: tasks as a dataset, one JSON object a line."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.formatting import count_text
from tenure.cli.group import SectionedCommand
from tenure.cli.output import echo, json_line
from tenure.cli.task_filter import filter_options
from tenure.client import Client
from tenure.domain.errors import NotFound
from tenure.sdk.dataset import dataset_row
from tenure.sdk.from_wire import task_info
from tenure.v1 import task_pb2


@click.command(cls=SectionedCommand, short_help="Write tasks into a file, as a dataset.")
@click.option(
    "--dataset",
    required=True,
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file, for example runs.jsonl. It replaces an earlier one when it is complete.",
)
@filter_options()
@click.option("--limit", type=click.IntRange(1), default=10_000, show_default=True, help="Export at most this many.")
@pass_context
def export(
    context: Context,
    dataset: Path,
    task_filter: task_pb2.TaskFilter,
    limit: int,
) -> None:
    """Write tasks into a file, one JSON object a line, the newest first: for evaluations and for training.

    Each line has the task's input and output, its conversation, its model calls and its tool calls: see docs/json.md.
    """

    async def work(client: Client) -> int:
        count = 0
        with _replaced(dataset) as file:
            async for line in _lines(client, task_filter, limit):
                file.write(f"{line}\n")
                count += 1
        return count

    count = context.run(work)
    echo(f"Wrote {count_text(count, 'task')} to {dataset}.", err=True)


async def _lines(client: Client, task_filter: task_pb2.TaskFilter, limit: int) -> AsyncIterator[str]:
    async for task in client.list_tasks(task_filter, limit=limit, fresh=True):
        try:
            entries = [entry async for entry in client.entries(task.task_id)]
        except NotFound:  # pruned meanwhile
            continue
        yield json_line(dataset_row(task_info(task), entries))


@contextmanager
def _replaced(path: Path) -> Iterator[TextIO]:
    """Yields a new file that gets the name at the end of the block. Only its owner may read it: it has people's goals.

    Raises ClickException if it cannot be written.
    """
    part: Path | None = None
    try:
        descriptor, name = tempfile.mkstemp(prefix=".tenure-", dir=path.parent)  # for its owner only
        part = Path(name)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
