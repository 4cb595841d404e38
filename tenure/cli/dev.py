"""`tenure dev`: runs a development stack on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click
from rich.console import Group, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from tenure.cli.context import Context, pass_context
from tenure.cli.exit_codes import Exit
from tenure.cli.output import echo
from tenure.cli.parameters import REPLICAS, SETTING
from tenure.runtime.running_stack import DEFAULT_DATA_DIR
from tenure.server_packages import server_packages

if TYPE_CHECKING:
    from devstack import Stack, StackOptions
    from devstack.stores import Store


# The screen of `tenure dev`: the processes with their addresses, warnings, files and first commands.

FIRST_GOAL: Final = "Compare our competitors' prices"
ROLES: Final = {
    "gateway": "the public API: gRPC, with reflection",
    "coordinator": "claims, leases and fencing tokens",
    "checkpoint": "the ledger",
    "tools": "runs tools, in a sandbox",
    "models": "model calls that outlive their worker",
}
TOOLS_LOGGER: Final = "services.tools.programs"
SANDBOX_LOGGER: Final = "services.tools.sandbox.sandbox"
UNSAFE_ETCD: Final = re.compile(r"3\.5\.[0-2]$")
"""Releases of etcd that can corrupt data in a crash. Source: etcd advises against them in production."""


def screen_of(stack: Stack, context: Context) -> RenderableType:
    """Returns the screen that `tenure dev` prints once the stack runs."""
    data = context.path_of(stack.layout.data_dir)
    return Group(
        Text.assemble("\n", ("Tenure runs.", "bold green"), f" Its data directory is {data}\n"),
        _running(stack),
        Text(""),
        *_warnings(stack),
        _directories(stack, context),
        Text(""),
        _advice(stack),
        Text(""),
    )


def command_prefix(stack: Stack) -> str:
    """Returns the command line prefix with which `tenure` finds this stack from the present directory."""
    is_default = DEFAULT_DATA_DIR.resolve() == stack.layout.data_dir
    name = command_name(sys.argv[0])
    return name if is_default else f"{name} --data {stack.options.data_dir}"


def command_name(started_as: str) -> str:
    """Returns `tenure` if the shell finds this program under that name, else the program's path."""
    own, program = Path(started_as).absolute(), shutil.which("tenure")
    if own.name != "tenure" or (program is not None and Path(program).absolute() == own):
        return "tenure"
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)


def _running(stack: Stack) -> Table:
    table = _grid()
    for kind, role in ROLES.items():
        for replica in stack.replicas(kind):
            table.add_row(replica.name, replica.address, role if replica.name == kind else "another replica")
    if stack.http_url:
        table.add_row("http", stack.http_url, "the public API by HTTP: JSON and server-sent events")
    for worker in stack.workers:
        table.add_row(worker.name, worker.address, f"runs up to {stack.options.slots} tasks at once")
    table.add_row("sandbox", "", _sandbox_text(stack))
    table.add_row("model", stack.model_url, _model_text(stack))
    for name, store in stack.stores.items():
        table.add_row(name, _store_address(store), _store_text(store))
    return table


def _sandbox_text(stack: Stack) -> str | Text:
    """Returns the limits of the sandbox. If there is no sandbox, the warnings say why."""
    from devstack.child_process import service_state

    limits = service_state(stack.services["tools"].log(), SANDBOX_LOGGER, "limits")
    return f"works ({limits})" if limits else Text("does not work: agents cannot run programs", "yellow")


def _model_text(stack: Stack) -> Text:
    if stack.options.scenario_files:
        from devstack.simulator.scenario import model_of

        models = ", ".join(model_of(file) for file in stack.options.scenario_files)
        return Text(f"SIMULATED by your scenarios: {models}; default model: {stack.options.default_model}", "yellow")
    if stack.options.model_is_simulated:
        return Text("SIMULATED: one scenario for every goal; set ANTHROPIC_API_KEY for a real model", "yellow")
    return Text(f"real{f', {stack.options.model}' if stack.options.model else ''}; web_search is simulated")


def _store_text(store: Store) -> str:
    return f"{store.version}, {'embedded' if store.embedded else 'yours'}"


def _store_address(store: Store) -> str:
    """Returns the address of a store without its password."""
    if "://" not in store.where:
        return store.where if "=" not in store.where else "as given by --postgres"
    parts = urlsplit(store.where)
    return f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _warnings(stack: Stack) -> list[RenderableType]:
    """Returns the warnings about an etcd release that is not for production, and those of the tool service."""
    from devstack.child_process import warnings_of

    warnings = warnings_of(stack.services["tools"].log(), TOOLS_LOGGER)
    release = stack.stores["etcd"].version
    if UNSAFE_ETCD.match(release):
        warnings.insert(0, f"etcd {release} is for development only: a crash can corrupt its data (docs/etcd.md)")
    if stack.taken_port:
        port = stack.gateway_address.rpartition(":")[2]
        warnings.insert(
            0, f"another process has port {stack.taken_port}: this stack has {port}, also when it starts again"
        )
    table = _grid()
    for one in warnings:
        table.add_row("warning", Text(one, "yellow"))
    return [table, Text("")] if warnings else []


def _directories(stack: Stack, context: Context) -> Table:
    layout = stack.layout
    table = _grid()
    table.add_row("logs", str(context.path_of(layout.logs)), "one file for each process")
    table.add_row(
        "records", str(context.path_of(layout.records)), "what append_record wrote: effects outside of Tenure"
    )
    table.add_row("metrics", str(context.path_of(layout.metrics_targets)), _metrics_text(stack))
    table.add_row("workspaces", str(context.path_of(layout.workspaces)), "the files of each task")
    if stack.options.model_is_simulated:
        table.add_row("model calls", str(context.path_of(layout.model_log)), "what the simulator billed")
    return table


def _metrics_text(stack: Stack) -> str:
    example = stack.replicas("gateway")[0].metrics_address or "HOST:PORT"
    return f"where each process serves metrics for Prometheus, for example http://{example}/metrics"


def _advice(stack: Stack) -> Table:
    tenure = command_prefix(stack)
    table = _grid()
    table.add_row("first task", Text(f'{tenure} submit "{FIRST_GOAL}" --watch', "bold"))
    if stack.http_url:
        table.add_row("in a browser", f"{stack.http_url}/console/")
    table.add_row("inspect", f"{tenure} list · explain TASK · tools sources · --help")
    table.add_row("stop", "Ctrl-C")
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2, 0, 2), pad_edge=True)
    table.add_column(style="dim", no_wrap=True)
    return table


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


@click.command(short_help="Run a development stack on this machine, until Ctrl-C.")
@click.option("--workers", type=click.IntRange(0, 64), default=2, show_default=True, help="The number of workers.")
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
    context: Context, /, data: Path | None, latency_ms: int, settings: Sequence[tuple[str, str, str]], **fields: Any
) -> None:
    """Run a development stack on this machine until Ctrl-C: etcd, Postgres, all services and a model.

    The model is the model simulator unless ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL, OPENAI_API_KEY or OPENAI_BASE_URL is
    set. Tasks and files are kept in the data directory; the next start with the same directory continues with them.
    """
    with server_packages("`tenure dev`", extra="dev"):
        from devstack import StackError

    options = stack_options(context, data, latency_ms, settings, **fields)
    try:
        code = asyncio.run(DevSession(context, options).run())
    except StackError as error:
        echo(f"tenure: {error}", err=True)
        code = Exit.REFUSED
    raise SystemExit(code)


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
        "*": passed_on(context.environment),
        "tools": named_in(fields["tools_config"], context.environment),
    }
    for service, variable, value in settings:
        environment.setdefault(service, {})[variable] = value
    options = StackOptions(
        data_dir=data or context.data_dir,
        model_runner=not fields.pop("direct_models"),
        usual_ports=True,
        port=fields.pop("port") or 0,
        metrics=True,
        http=True,
        anthropic_api_key=context.environment.get("ANTHROPIC_API_KEY", ""),
        anthropic_base_url=context.environment.get("ANTHROPIC_BASE_URL", ""),
        openai_api_key=context.environment.get("OPENAI_API_KEY", ""),
        openai_base_url=context.environment.get("OPENAI_BASE_URL", ""),
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


def named_in(tools_config: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the set environment variables that the tools configuration names as `${NAME}`."""
    if tools_config is None:
        return {}
    names = VARIABLE.findall(tools_config.read_text(encoding="utf-8", errors="replace"))
    return {name: environment[name] for name in names if name in environment}


class DevSession:
    """One run of the stack: start, screen, supervision, stop."""

    def __init__(self, context: Context, options: StackOptions) -> None:
        from devstack import Stack

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

        keeping = asyncio.create_task(keep_running(self._stack, self._report))
        stopping = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({keeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in (keeping, stopping):
            task.cancel()
        results = await asyncio.gather(keeping, stopping, return_exceptions=True)
        if isinstance(results[0], Exception):
            raise results[0]

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
