"""The command and its options."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.dev import passed_on
from tenure.cli.exits import Exit


@click.command(short_help="Show the main job, and judge it.")
@click.option("--json", "as_json", is_flag=True, help="End with one line of JSON; what happens goes to standard error.")
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Keep all files here; new or empty.")
@pass_context
def demo(context: Context, /, as_json: bool, data: Path | None) -> None:
    """Show the main job, and judge it: freeze one worker, kill another, count the effects.

    Takes about half a minute, needs nothing but this machine, leaves nothing behind. Exit code 1: a promise was broken.
    """
    from tenure.cli.demo.performance import Performance  # it starts processes, which other commands need not load

    if data is not None and data.exists() and any(data.iterdir()):
        raise click.UsageError(f"{data} is not empty: the demo counts what it finds, and must begin with nothing")
    data_dir = data or Path(tempfile.mkdtemp(prefix="tenure-demo-"))
    performance = Performance(data_dir, passed_on(context.environment), as_json=as_json or context.as_json)
    code = performance.run(context.console)
    if data is None and code != Exit.TASK_FAILED:  # a failure's logs are kept
        shutil.rmtree(data_dir, ignore_errors=True)
    raise SystemExit(code)
