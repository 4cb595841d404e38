"""`tenure`: the root command, and its options, four of which may stand anywhere on the line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import click

from tenure.cli.exit_codes import HELP
from tenure.cli.group import Group
from tenure.cli.groups import add_commands
from tenure.cli.streams import replace_unknown_characters
from tenure.runtime.running_stack import DEFAULT_DATA_DIR

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(
    cls=Group,
    epilog=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--address",
    metavar="HOST:PORT",
    envvar="TENURE_ADDRESS",
    help="The gateway; several, separated by commas; without a port 8470. Default: the gateway of the stack that runs"
    " on --data, else 127.0.0.1:8470.",
)
@click.option(
    "--tenant",
    envvar="TENURE_TENANT",
    help="The tenant. Default: that of your API key, else `default`.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line: see docs/json.md.")
@click.option("-v", "--verbose", "is_verbose", is_flag=True, help="Print exact amounts and more details.")
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    envvar="TENURE_DATA",
    default=DEFAULT_DATA_DIR,
    show_default=True,
    help="The data directory of a development stack on this machine; the default also in the folders above.",
)
@click.option(
    "--api-key-file",
    type=FILE,
    help="A file with your API key. Default: the key in TENURE_API_KEY, else the file of TENURE_API_KEY_FILE.",
)
@click.option(
    "--tls-ca-file",
    type=FILE,
    help="The authority of the gateway, for TLS.",
)
@click.option(
    "--tls-certificate-file",
    type=FILE,
    help="Your certificate.",
)
@click.option(
    "--tls-key-file",
    type=FILE,
    help="The private key of your certificate.",
)
@click.version_option(package_name="tenure")
@click.pass_context
def cli(ctx: click.Context, /, **options: Any) -> None:
    """Durable tasks for AI agents: a task survives its workers.

    \b
    tenure dev                      start all services on this machine
    tenure submit "GOAL" --watch    submit a goal and watch the agent work
    tenure explain TASK             say why a task is in its state, and what helps

    TASK is a task's id, or the first characters of it. --json, -v, --tenant and --address may stand anywhere on the
    line.
    """  # noqa: D301  the \\b must reach click as one character: click then keeps the line breaks
    from tenure.cli.context import context_of

    ctx.obj = context_of(os.environ, **options)


add_commands(cli)


def main() -> None:
    """Runs `tenure`: the entry point of the package."""
    replace_unknown_characters()
    cli.main(prog_name="tenure")
