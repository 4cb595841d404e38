"""`tenure`: the command group, its global options, and the exit code of each error."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from tenure.cli.admin import admin
from tenure.cli.context import DEFAULT_ADDRESS, DEFAULT_DATA_DIR, Context, find_gateway, find_tls, read_key
from tenure.cli.demo.command import demo
from tenure.cli.dev import dev
from tenure.cli.exit_codes import (
    HELP,
    Exit,
    exit_of_error,
    explain,
)
from tenure.cli.export import export
from tenure.cli.files import files
from tenure.cli.follow import follow
from tenure.cli.keys import certs, keys
from tenure.cli.leases import leases
from tenure.cli.output import echo, make_console
from tenure.cli.replay import replay
from tenure.cli.schedules import schedules
from tenure.cli.send_and_fork import fork, send
from tenure.cli.serve import serve
from tenure.cli.submit import submit
from tenure.cli.tasks import cancel, entries, get, list_tasks, tree, wait
from tenure.cli.tasks import explain as explain_task
from tenure.cli.tenants import tenants, usage
from tenure.cli.tools import tools
from tenure.cli.waits import resume, signal, waits
from tenure.cli.watch import watch
from tenure.cli.webhooks import webhooks
from tenure.cli.workers import claims, queues, refusals, workers
from tenure.client.client import check_stays_here
from tenure.domain.errors import TenureError
from tenure.runtime.rpc_client import target_of
from tenure.runtime.rpc_status import PeerFailed
from tenure.runtime.tls import ClientTls
from tenure.server_packages import MissingExtra

FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


class Group(click.Group):
    """Prints an error of the API on standard error and exits with its exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (TenureError, PeerFailed, TimeoutError, MissingExtra) as error:
            address = ctx.obj.address if isinstance(ctx.obj, Context) else ""
            message = explain(error, address).replace("\n", "\n  ")  # a further line must not look like one of ours
            echo(f"tenure: {message}", err=True)
            ctx.exit(exit_of_error(error))
        except KeyboardInterrupt:
            ctx.exit(Exit.INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Returns the commands in the order in which a new user needs them, not sorted by name."""
        return list(self.commands)


@click.group(
    cls=Group,
    epilog=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--address",
    metavar="HOST:PORT",
    envvar="TENURE_ADDRESS",
    help="The gateway; several, separated by commas. Default: the gateway of the stack that runs on --data,"
    " else 127.0.0.1:8470.",
)
@click.option("--tenant", envvar="TENURE_TENANT", help="The tenant. Default: that of your API key, else `default`.")
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
@click.option("--api-key-file", type=FILE, envvar="TENURE_API_KEY_FILE", help="A file with your API key.")
@click.option("--tls-ca-file", type=FILE, envvar="TENURE_TLS_CA_FILE", help="The authority of the gateway, for TLS.")
@click.option("--tls-certificate-file", type=FILE, envvar="TENURE_TLS_CERTIFICATE_FILE", help="Your certificate.")
@click.option("--tls-key-file", type=FILE, envvar="TENURE_TLS_KEY_FILE", help="The private key of your certificate.")
@click.version_option(package_name="tenure")
@click.pass_context
def cli(
    ctx: click.Context,
    address: str | None,
    tenant: str | None,
    as_json: bool,
    is_verbose: bool,
    data: Path,
    api_key_file: Path | None,
    tls_ca_file: Path | None,
    tls_certificate_file: Path | None,
    tls_key_file: Path | None,
) -> None:
    """Durable tasks for AI agents: a task survives its workers.

    \b
    tenure dev                      start all services on this machine
    tenure submit "GOAL" --watch    submit a goal and watch the agent work
    tenure explain TASK             say why a task is in its state, and what helps

    TASK is a task's id, or the first characters of it.
    """  # noqa: D301  the \\b must reach click as one character: click then keeps the line breaks
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
    gateway, api_key = find_gateway(address, data), "" if api_key_file is None else partial(read_key, api_key_file)
    if api_key and tls is None:
        try:
            check_stays_here(gateway)
        except ValueError as error:
            raise click.UsageError(f"{error} with --tls-ca-file") from None
    ctx.obj = Context(gateway, tenant, as_json, data, make_console(), os.environ, is_verbose, tls, api_key)


def add_common_options(command: click.Command) -> None:
    """Adds --json and -v to the command and its subcommands, so that both work before and after the command's name."""
    flags = {flag for parameter in command.params for flag in parameter.opts}
    for option_flags, callback, help_text in _COMMON:
        if not flags & set(option_flags):
            option = click.Option(option_flags, is_flag=True, expose_value=False, callback=callback, help=help_text)
            command.params.append(option)
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            add_common_options(subcommand)


def _set_json(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Turns JSON on for this command and its subcommands. A flag before the command's name stays in force."""
    if value and isinstance(ctx.obj, Context):
        ctx.obj = replace(ctx.obj, as_json=True)


def _set_verbose(ctx: click.Context, _parameter: click.Parameter, value: bool) -> None:
    """Turns details on, as _set_json does for JSON."""
    if value and isinstance(ctx.obj, Context):
        ctx.obj = replace(ctx.obj, is_verbose=True)


_COMMON: Final = (
    (["--json"], _set_json, "Print JSON, one object a line: see docs/json.md."),
    (["-v", "--verbose"], _set_verbose, "Print exact amounts and more details."),
)

for command in (
    demo,
    dev,
    submit,
    watch,
    wait,
    get,
    list_tasks,
    tree,
    follow,
    cancel,
    waits,
    resume,
    signal,
    entries,
    send,
    fork,
    replay,
    export,
    files,
    claims,
    workers,
    queues,
    refusals,
    explain_task,
    tools,
    leases,
    schedules,
    webhooks,
    usage,
    tenants,
    admin,
    serve,
    keys,
    certs,
):
    cli.add_command(command)
    add_common_options(command)


def main() -> None:
    """Runs `tenure`: the entry point of the package."""
    cli.main(prog_name="tenure")
