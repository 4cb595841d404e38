"""`tenure demo`: a worker is frozen, two are killed, and the result is judged."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import click

from tenure.cli.context import Context, pass_context
from tenure.cli.dev import passed_on
from tenure.cli.exit_codes import Exit
from tenure.server_packages import server_packages


@click.command(short_help="Break the workers of a task, and judge the result.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep all files in this directory, which must be new or empty.",
)
@pass_context
def demo(context: Context, /, data: Path | None) -> None:
    """Run a task, freeze one of its workers, kill two others, and judge the result by the effects outside.

    Takes about half a minute, needs only this machine, and leaves no files. With --json it prints one line of JSON at
    the end, and the events on standard error. The exit code is 1 if a promise was broken.
    """
    if data is not None and data.exists() and any(data.iterdir()):
        raise click.UsageError(
            f"{data} is not empty: the demo counts effects in its files; give a new or empty directory"
        )
    with server_packages("`tenure demo`", extra="dev"):
        from tenure.cli.demo.run import DemoRun
    data_dir = data or Path(tempfile.mkdtemp(prefix="tenure-demo-"))
    run = DemoRun(data_dir, passed_on(context.environment), as_json=context.as_json)
    code = run.run(context.console)
    if data is None and code != Exit.TASK_FAILED:  # keep the logs of a failed run
        shutil.rmtree(data_dir, ignore_errors=True)
    raise SystemExit(code)
