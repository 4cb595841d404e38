"""`tenure dev`: runs a development stack on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.status import Status

from tenure.cli.context import Context, pass_context
from tenure.cli.dev_programs import keep_programs
from tenure.cli.dev_screen import screen_of
from tenure.cli.exit_codes import Exit
from tenure.cli.output import echo
from tenure.cli.parameters import REPLICAS, SETTING
from tenure.cli.questions import confirm, is_interactive
from tenure.runtime.running_stack import given_vendors
from tenure.runtime.settings import secret_text
from tenure.runtime.task_group import TaskGroup
from tenure.server_packages import server_packages

if TYPE_CHECKING:
    from devstack import Stack, StackOptions


SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON: Final = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"),
    *("TENURE_FAILPOINTS", "TENURE_LOG_LEVEL", "TENURE_OPENAI_STREAM", "TENURE_OPENAI_SILENCE_SECONDS"),
    *("TENURE_OPENAI_CONTEXT_WINDOW_TOKENS", "TENURE_OPENAI_MAX_OUTPUT_TOKENS"),
)
PASSED_ON_PREFIX: Final = "OTEL_"
VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
NOT_PROXIED: Final = "127.0.0.1,localhost"
PATIENT: Final[Mapping[str, Mapping[str, str]]] = {
    "coordinator": {"TENURE_COORDINATOR_TTL_SECONDS": "15"},
    "tools": {"TENURE_TOOLS_RUNNER_TTL_SECONDS": "15"},
}
"""Leases that a busy laptop does not lose. A killed worker's tasks go on at once all the same: its stream breaks."""


@click.command(short_help="Run a development stack on this machine, until Ctrl-C.")
@click.argument(
    "programs", nargs=-1, metavar="[PROGRAM.py]…", type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--reload", is_flag=True, help="Drain a PROGRAM and start it again when a Python file below its folder changes."
)
@click.option("--reset", is_flag=True, help="Delete the data directory of the stack that ran here, and start nothing.")
@click.option("--yes", is_flag=True, help="Do not ask before --reset.")
@click.option("--workers", type=click.IntRange(0, 64), default=1, show_default=True, help="The number of workers.")
@click.option(
    "--replicas",
    type=REPLICAS,
    default=dict,
    metavar="N|SERVICE=N,…",
    help="The number of replicas: 2 of each service, or for example coordinator=2,tools=2. Default: 1.",
)
@click.option(
    "--slots", type=click.IntRange(1, 1024), default=16, show_default=True, help="Tasks that a worker runs at once."
)
@click.option(
    "--set",
    "settings",
    type=SETTING,
    multiple=True,
    metavar="SERVICE.NAME=VALUE",
    help="A setting of a service or of one replica, for example worker.PROMPT_CACHING=false. `tenure serve worker"
    " --help` lists the settings. May be repeated.",
)
@click.option(
    "--port",
    type=click.IntRange(1024, 64_000),
    help="The port of the gateway; HTTP gets the port 10 above it, and the other services those around it. Default: the"
    " ports of the last start in this data directory, else 8470 and 8480, if they are free.",
)
@click.option("--data", type=click.Path(path_type=Path), help="The data directory. Default: that of `tenure --data`.")
@click.option("--etcd", "etcd_endpoints", default="", metavar="HOST:PORT,…", help="Use this etcd, which runs already.")
@click.option("--etcd-binary", type=click.Path(path_type=Path), help="Run this etcd binary.")
@click.option(
    "--postgres", "postgres_dsn", default="", metavar="DSN", help="Use this Postgres database, which runs already."
)
@click.option(
    "--postgres-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The same, with the DSN in a file: every account can read --postgres in the list of processes.",
)
@click.option("--postgres-binaries", type=click.Path(path_type=Path), help="Run the Postgres of this bin directory.")
@click.option(
    "--tools-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file with more tools, such as MCP servers: docs/tools.md. The environment variables that it names are"
    " passed to the tool service.",
)
@click.option(
    "--scenario",
    "scenario_files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="A scenario of the model simulator: docs/scenarios.md. NAME.yaml is the model sim-NAME; the first one is the"
    " default model. May be repeated.",
)
@click.option(
    "--direct-models",
    is_flag=True,
    help="No model runner: the workers call models themselves, and a takeover repeats the call in flight.",
)
@click.option("--tls", is_flag=True, help="Mutual TLS between all processes, with certificates made for this stack.")
@click.option("--model", default="", help="The default model; the simulator has sim-demo, sim-hello, …")
@click.option(
    "--latency-ms",
    type=click.IntRange(0, 600_000),
    default=1500,
    show_default=True,
    help="How long a simulated model call takes.",
)
@pass_context
def dev(
    context: Context,
    /,
    programs: Sequence[Path],
    data: Path | None,
    latency_ms: int,
    settings: Sequence[tuple[str, str, str]],
    *,
    reload: bool,
    reset: bool,
    yes: bool,
    **fields: Any,
) -> None:
    """Run a development stack on this machine until Ctrl-C: etcd, Postgres, all services and a model.

    Each PROGRAM.py runs your workers beside it, with the output in this terminal.

    The model is the model simulator unless ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL, OPENAI_API_KEY or OPENAI_BASE_URL has
    a value; ANTHROPIC_API_KEY_FILE and OPENAI_API_KEY_FILE name files with keys. Tasks, files, logs and keys are kept
    in the data directory, .tenure by default; the next start with the same directory continues with them. `tenure dev
    --reset` deletes it, and nothing else of Tenure is on this machine's disk.
    """
    with server_packages("`tenure dev`", extra="dev"):
        from devstack import StackError

    if reload and not programs:
        raise click.UsageError("--reload is for your programs: tenure dev PROGRAM.py --reload")
    try:
        if reset:
            delete_data(context, data or context.data_dir, is_confirmed=yes)
            return
        options = stack_options(context, data, latency_ms, settings, **fields)
        code = asyncio.run(DevSession(context, options, programs, reload=reload).run())
    except StackError as error:
        echo(f"tenure: {error}", err=True)
        code = Exit.REFUSED
    raise SystemExit(code)


def delete_data(context: Context, folder: Path, *, is_confirmed: bool) -> None:
    """Deletes the data directory of a stack that does not run, after a question.

    Raises StackError if it is none, or if its stack runs.
    """
    from devstack.data_dir import delete_stack, find_stack, size_of

    find_stack(folder)
    what = f"{context.path_of(folder.resolve())} ({size_of(folder) >> 20} MiB): its tasks, files, logs and keys"
    if not is_confirmed:
        if not is_interactive():
            raise click.UsageError(f"outside of a terminal give --yes, which deletes {what}")
        asyncio.run(confirm(f"Delete {what}?"))
    left = delete_stack(folder)
    kept = f"; these files are not of the stack, and stay: {', '.join(left)}" if left else ""
    echo(f"Deleted {what}{kept}.")


def stack_options(
    context: Context, data: Path | None, latency_ms: int, settings: Sequence[tuple[str, str, str]], **fields: Any
) -> StackOptions:
    """Returns the stack that the options describe. Raises UsageError for options that exclude each other."""
    from devstack import StackOptions

    if fields["etcd_endpoints"] and fields["etcd_binary"]:
        raise click.UsageError("--etcd uses a running etcd, --etcd-binary starts one: give only one of them")
    fields["postgres_dsn"] = one_dsn(fields["postgres_dsn"], fields.pop("postgres_file"))
    if fields["postgres_dsn"] and fields["postgres_binaries"]:
        raise click.UsageError(
            "--postgres uses a running server, --postgres-binaries starts one: give only one of them"
        )
    environment = {
        **{service: dict(variables) for service, variables in PATIENT.items()},
        "*": passed_on(context.environment),
    }
    environment["tools"] |= named_in(fields["tools_config"], context.environment)
    for service, variable, value in settings:
        environment.setdefault(service, {})[variable] = value
    vendors = vendor_values(context.environment)
    options = StackOptions(
        data_dir=data or context.data_dir,
        model_runner=not fields.pop("direct_models"),
        usual_ports=True,
        port=fields.pop("port") or 0,
        metrics=True,
        http=True,
        forked=True,
        anthropic_api_key=vendors.get("ANTHROPIC_API_KEY", ""),
        anthropic_base_url=vendors.get("ANTHROPIC_BASE_URL", ""),
        openai_api_key=vendors.get("OPENAI_API_KEY", ""),
        openai_base_url=vendors.get("OPENAI_BASE_URL", ""),
        model_latency_ms=latency_ms,
        environment=environment,
        **fields,
    )
    for service, _variable, _value in settings:
        kind = service.partition("-")[0]
        if service not in options.names_of(kind) and (service != kind or kind == "models"):
            raise click.UsageError(f"--set: there is no {service}; see --replicas, --workers and --direct-models")
    if not options.default_model_has_provider:
        raise click.UsageError(
            f"there is a provider only for {' and '.join(options.real_vendors)}, but tasks get the model "
            f"{options.default_model}: name one of your own with --model, for example --model openai/NAME"
        )
    if options.scenario_files and not options.model_is_simulated:
        raise click.UsageError(
            "--scenario needs the model simulator, but the key or the base URL of Anthropic or OpenAI is set: unset it"
        )
    return options


def one_dsn(dsn: str, file: Path | None) -> str:
    """Returns the DSN that was given, directly or in a file. Raises UsageError for both."""
    from devstack.stores import has_password

    if file is not None:
        if dsn:
            raise click.UsageError("--postgres and --postgres-file both name the database: give only one of them")
        return file.read_text(encoding="utf-8").strip()
    if has_password(dsn):
        echo("tenure: every account of this machine can read the password in --postgres: use --postgres-file", err=True)
    return dsn


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that the services get: paths, locale, proxies, telemetry, settings of models and tests."""
    passed = {name: environment[name] for name in PASSED_ON if name in environment}
    passed.update((name, value) for name, value in environment.items() if name.startswith(PASSED_ON_PREFIX))
    others = environment.get("NO_PROXY") or environment.get("no_proxy")
    passed["NO_PROXY"] = ",".join(filter(None, (others, NOT_PROXIED)))  # the simulator is on this machine
    return passed


def vendor_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the values of the variables that give a model provider. Raises click.UsageError for a wrong file."""
    values: dict[str, str] = {}
    for name in given_vendors(environment):
        try:
            values[name] = secret_text(name, environment)
        except ValueError as error:
            raise click.UsageError(f"{name} {error}") from error
    return values


def named_in(tools_config: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the set environment variables that the tools configuration names as `${NAME}`."""
    if tools_config is None:
        return {}
    names = VARIABLE.findall(tools_config.read_text(encoding="utf-8", errors="replace"))
    return {name: environment[name] for name in names if name in environment}


class DevSession:
    """One run of the stack: start, screen, supervision, stop."""

    def __init__(self, context: Context, options: StackOptions, programs: Sequence[Path], *, reload: bool) -> None:
        from devstack import Stack

        self._programs, self._reload = programs, reload
        self._context, self._console = context, context.console
        self._status = Status("", console=self._console)
        self._stack: Stack = Stack(options, self._show_progress)
        self._stopping = asyncio.Event()
        self._starting: asyncio.Task[Any] | None = None

    async def run(self) -> Exit:
        """Runs the stack until a signal, and returns when all its processes have ended.

        Raises StackError if the stack cannot start.
        """
        self._starting = asyncio.current_task()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal)
        try:
            async with self._stack:
                self._starting = None
                self._show()
                await self._until_stopped()
        except asyncio.CancelledError:
            self._print("stopped before the stack was ready")
            return Exit.INTERRUPTED
        finally:
            self._status.stop()
        self._print(
            f"The stack has stopped. Tasks and files are kept in {self._context.path_of(self._stack.layout.data_dir)}."
        )
        return Exit.OK

    async def _until_stopped(self) -> None:
        """Waits for a stop signal. Restarts processes that die, and reports each."""
        from devstack.supervisor import keep_running

        environment = {**self._context.environment, "TENURE_DATA": str(self._stack.layout.data_dir)}
        output = sys.stderr if self._context.as_json else sys.stdout
        programs = keep_programs(self._programs, environment, output, self._report, reload=self._reload)
        async with TaskGroup() as tasks:
            keeping = [tasks.create_task(part) for part in (keep_running(self._stack, self._report), programs)]
            await self._stopping.wait()
            for task in keeping:
                task.cancel()

    def _on_signal(self) -> None:
        """Stops the stack at the first signal; kills all processes at the second."""
        if self._stopping.is_set():
            for child in self._stack.children():
                child.kill()
            os._exit(Exit.INTERRUPTED)
        self._stopping.set()
        if self._starting is not None:
            self._starting.cancel()

    def _show(self) -> None:
        self._status.stop()
        if self._context.as_json:
            self._context.emit(self._stack.addresses())
        else:
            self._console.print(screen_of(self._stack, self._context))

    def _show_progress(self, what: str) -> None:
        """Shows a step of the start or the stop. On a terminal the next step replaces it."""
        if self._console.is_terminal:
            self._status.update(f"{what} …")
            self._status.start()
        else:
            self._print(f"{what} …")

    def _report(self, what: str) -> None:
        self._print(f"{time.strftime('%H:%M:%S')} {what}", style="yellow")

    def _print(self, what: str, style: str = "") -> None:
        if self._context.as_json:
            echo(what, err=True)
            return
        with suppress(OSError):  # the terminal may be closed; the stack must still stop in order
            self._console.print(what, style=style, soft_wrap=True)
