"""`tenure`: the root command, and its options, four of which may stand anywhere on the line."""

from __future__ import annotations

import os
import re
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from click.core import ParameterSource

from tenure.cli.context import DEFAULT_ADDRESS, DEFAULT_DATA_DIR, Context, find_gateway, find_tls, read_key
from tenure.cli.exit_codes import HELP
from tenure.cli.group import ClientOption, Group
from tenure.cli.groups import add_commands
from tenure.cli.output import make_console, replace_unknown_characters
from tenure.client.client import check_stays_here
from tenure.runtime.rpc.client import target_of
from tenure.runtime.security.tls import ClientTls

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
ANYWHERE: Final = ("address", "tenant", "as_json", "is_verbose")
"""The parameters whose options may also stand after the name of a command."""


@click.group(
    cls=Group,
    epilog=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--address",
    cls=ClientOption,
    metavar="HOST:PORT",
    envvar="TENURE_ADDRESS",
    help="The gateway; several, separated by commas. Default: the gateway of the stack that runs on --data,"
    " else 127.0.0.1:8470.",
)
@click.option(
    "--tenant",
    cls=ClientOption,
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
    help="The data directory of a development stack on this machine.",
)
@click.option(
    "--api-key-file",
    cls=ClientOption,
    type=FILE,
    envvar="TENURE_API_KEY_FILE",
    help="A file with your API key. Default: the key in TENURE_API_KEY, else the file of TENURE_API_KEY_FILE.",
)
@click.option(
    "--tls-ca-file",
    cls=ClientOption,
    type=FILE,
    envvar="TENURE_TLS_CA_FILE",
    help="The authority of the gateway, for TLS.",
)
@click.option(
    "--tls-certificate-file",
    cls=ClientOption,
    type=FILE,
    envvar="TENURE_TLS_CERTIFICATE_FILE",
    help="Your certificate.",
)
@click.option(
    "--tls-key-file",
    cls=ClientOption,
    type=FILE,
    envvar="TENURE_TLS_KEY_FILE",
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
    if ctx.get_parameter_source("api_key_file") is ParameterSource.ENVIRONMENT and os.environ.get("TENURE_API_KEY"):
        ctx.params["api_key_file"] = options["api_key_file"] = None  # the Python client takes the key, too
    ctx.obj = context_of(**options)


def context_of(
    *,
    address: str | None,
    tenant: str | None,
    as_json: bool,
    is_verbose: bool,
    data: Path,
    api_key_file: Path | None,
    tls_ca_file: Path | None,
    tls_certificate_file: Path | None,
    tls_key_file: Path | None,
) -> Context:
    """Returns the context that the options describe. Raises UsageError for options that exclude each other."""
    if address and not re.fullmatch(r"[^/\s]+:\d{1,5}", address):
        raise click.BadParameter(
            f"{address} is not an address; write for example 127.0.0.1:8470", param_hint="--address"
        )
    try:
        target_of((address or DEFAULT_ADDRESS).split(","))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--address") from None
    if (tls_certificate_file is None) != (tls_key_file is None):
        raise click.UsageError("--tls-certificate-file and --tls-key-file belong together: give both, or none")
    tls = find_tls(ClientTls(tls_ca_file, tls_certificate_file, tls_key_file), address, data)
    gateway = find_gateway(address, data)
    api_key = os.environ.get("TENURE_API_KEY", "") if api_key_file is None else partial(read_key, api_key_file)
    if api_key and tls is None:
        try:
            check_stays_here(gateway)
        except ValueError as error:
            raise click.UsageError(f"{error} with --tls-ca-file") from None
    return Context(gateway, tenant, as_json, data, make_console(), os.environ, is_verbose, tls, api_key)


class AnywhereOption(click.Option):
    """An option of `tenure` that stands after the name of a command. Only the help of `tenure` lists it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Returns nothing: shells complete the option, but no page of help repeats it."""


def accept_anywhere(command: click.Command) -> None:
    """Lets the options of `ANYWHERE` stand after the name of this command, and of those below it."""
    if command.context_settings.get("ignore_unknown_options"):  # a service reads its arguments itself
        return
    command.epilog = command.epilog or "`tenure --help` lists --json, -v, --tenant and --address."
    for option in cli.params:
        if option.name in ANYWHERE and isinstance(option, click.Option):
            names = [option.name, *option.opts]
            command.params.append(
                AnywhereOption(names, is_flag=option.is_flag, expose_value=False, callback=_set, help=option.help)
            )
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        accept_anywhere(subcommand)


def _set(ctx: click.Context, option: click.Parameter, value: Any) -> None:
    """Sets the option as if it stood before the command's name."""
    root = ctx.find_root()
    if value and option.name and not ctx.resilient_parsing:
        root.params[option.name] = value
        root.obj = ctx.obj = context_of(**root.params)


add_commands(cli)
for _command in cli.commands.values():
    accept_anywhere(_command)


def main() -> None:
    """Runs `tenure`: the entry point of the package."""
    replace_unknown_characters()
    cli.main(prog_name="tenure")
