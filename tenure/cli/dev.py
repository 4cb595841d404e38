"""`tenure dev`: the whole stack on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click
from rich.console import Group, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

from devstack.child_process import fact_of, warnings_of
from devstack.simulator.scenario import model_of
from tenure.cli.context import DEFAULT_DATA_DIR, Context, pass_context
from tenure.cli.exit_codes import Exit
from tenure.cli.output import echo
from tenure.cli.parameters import REPLICAS

if TYPE_CHECKING:
    from devstack import Stack, StackOptions
    from devstack.stores import Store


# The one screen of `tenure dev`: what runs where, and what to do with it.

FIRST_GOAL: Final = "Compare our competitors' prices"
ROLES: Final = {
    "gateway": "the public API: gRPC, with reflection",
    "coordinator": "leases and fencing tokens",
    "checkpoint": "the work ledger",
    "tools": "runs tools, in a sandbox",
}
TOOLS_LOGGER: Final = "services.tools.programs"
SANDBOX_LOGGER: Final = "services.tools.sandbox.sandbox"
UNSAFE_ETCD: Final = re.compile(r"3\.5\.[0-2]$")
"""These releases can corrupt data in a crash (etcd's own advice: do not run them in production)."""


def screen_of(stack: Stack, context: Context) -> RenderableType:
    """Everything somebody wants to know who sees this for the first time."""
    data = context.path_of(stack.layout.data_dir)
    return Group(
        Text.assemble("\n", ("Tenure runs here.", "bold green"), f" Its data is in {data}\n"),
        _running(stack),
        Text(""),
        *_warnings(stack),
        _places(stack, context),
        Text(""),
        _advice(stack),
        Text(""),
    )


def command_prefix(stack: Stack) -> str:
    """How the command is called so that it finds this stack from the folder where it was started."""
    usual = DEFAULT_DATA_DIR.resolve() == stack.layout.data_dir
    name = command_name(sys.argv[0])
    return name if usual else f"{name} --data {stack.options.data_dir}"


def command_name(started_as: str) -> str:
    """What to type: `tenure` where the shell finds this very one, its path otherwise."""
    own, program = Path(started_as).absolute(), shutil.which("tenure")
    if own.name != "tenure" or (program is not None and Path(program).absolute() == own):
        return "tenure"
    return str(own.relative_to(Path.cwd())) if own.is_relative_to(Path.cwd()) else str(own)


def _running(stack: Stack) -> Table:
    table = _grid()
    for kind, role in ROLES.items():
        for replica in stack.replicas(kind):
            table.add_row(replica.name, replica.address, role if replica.name == kind else "another of them")
    for worker in stack.workers:
        table.add_row(worker.name, worker.address, f"carries out up to {stack.options.slots} tasks at once")
    table.add_row("sandbox", "", _sandbox_words(stack))
    table.add_row("model", stack.model_url, _model_words(stack))
    for name, store in stack.stores.items():
        table.add_row(name, _store_address(store), _store_words(store))
    return table


def _sandbox_words(stack: Stack) -> str | Text:
    """Which cgroups bound agents' programs; the reasons for having none are among the warnings."""
    limits = fact_of(stack.services["tools"].log(), SANDBOX_LOGGER, "limits")
    return f"holds ({limits})" if limits else Text("programs cannot be run here", "yellow")


def _model_words(stack: Stack) -> Text:
    if stack.options.scenario_files:
        models = ", ".join(model_of(file) for file in stack.options.scenario_files)
        return Text(
            f"SIMULATED by your scenarios: {models}; tasks that name no model: {stack.options.default_model}", "yellow"
        )
    if stack.options.model_is_simulated:
        return Text("SIMULATED, one scenario whatever the goal; set ANTHROPIC_API_KEY for a real one", "yellow")
    return Text(f"real{f', {stack.options.model}' if stack.options.model else ''}; web_search is simulated")


def _store_words(store: Store) -> str:
    return f"{store.version}, {'embedded' if store.embedded else 'yours'}"


def _store_address(store: Store) -> str:
    """Without the password."""
    if "://" not in store.where:
        return store.where if "=" not in store.where else "as --postgres says"
    parts = urlsplit(store.where)
    return f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _warnings(stack: Stack) -> list[RenderableType]:
    """An etcd that is not for production, a machine without a sandbox."""
    warnings = warnings_of(stack.services["tools"].log(), TOOLS_LOGGER)
    release = stack.stores["etcd"].version
    if UNSAFE_ETCD.match(release):
        warnings.insert(0, f"etcd {release} is for development only: a crash can corrupt its data (docs/etcd.md)")
    table = _grid()
    for one in warnings:
        table.add_row("warning", Text(one, "yellow"))
    return [table, Text("")] if warnings else []


def _places(stack: Stack, context: Context) -> Table:
    layout = stack.layout
    table = _grid()
    table.add_row("logs", str(context.path_of(layout.logs)), "one file for each process")
    table.add_row("records", str(context.path_of(layout.records)), "what append_record wrote: the outside world")
    table.add_row("workspaces", str(context.path_of(layout.workspaces)), "the files of each task")
    if stack.options.model_is_simulated:
        table.add_row("model calls", str(context.path_of(layout.model_log)), "what the simulator billed")
    return table


def _advice(stack: Stack) -> Table:
    tenure = command_prefix(stack)
    table = _grid()
    table.add_row("first task", Text(f'{tenure} submit "{FIRST_GOAL}" --watch', "bold"))
    table.add_row("look", f"{tenure} list · explain TASK · tools sources · --help")
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
    *("TENURE_FAILPOINTS", "TENURE_LOG_LEVEL"),
)
PASSED_ON_PREFIX: Final = "OTEL_"
VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
NOT_PROXIED: Final = "127.0.0.1,localhost"


@click.command(short_help="Run a whole stack here, until Ctrl-C.")
@click.option("--workers", type=click.IntRange(0, 64), default=2, show_default=True, help="How many workers.")
@click.option(
    "--replicas",
    type=REPLICAS,
    default=dict,
    metavar="N|SERVICE=N,…",
    help="How many of each service: 2 of all, or for example coordinator=2,tools=2. Default: one.",
)
@click.option("--slots", type=click.IntRange(1, 1024), default=16, show_default=True, help="Tasks a worker holds.")
@click.option(
    "--data", type=click.Path(path_type=Path), help="Where everything is kept. Default: that of `tenure --data`."
)
@click.option("--etcd", "etcd_endpoints", default="", metavar="HOST:PORT,…", help="An etcd of your own.")
@click.option("--etcd-binary", type=click.Path(path_type=Path), help="The etcd to run instead of the one found.")
@click.option("--postgres", "postgres_dsn", default="", metavar="DSN", help="A Postgres database of your own.")
@click.option("--postgres-binaries", type=click.Path(path_type=Path), help="The bin folder of the Postgres to run.")
@click.option(
    "--tools-config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A file of further tools, such as MCP servers: docs/tools.md. Variables that it names are passed on.",
)
@click.option(
    "--scenario",
    "scenario_files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    metavar="FILE",
    help="Answers of the simulated model: docs/scenarios.md. NAME.yaml is the model sim-NAME; the first is for tasks"
    " that name no model. May be repeated.",
)
@click.option(
    "--model", default="", help="The model of tasks that name none; with the simulator sim-demo, sim-hello, …"
)
@click.option(
    "--latency-ms",
    type=click.IntRange(0, 600_000),
    default=1500,
    show_default=True,
    help="How long the simulated model takes for a turn.",
)
@pass_context
def dev(context: Context, /, data: Path | None, latency_ms: int, **fields: Any) -> None:
    """Run the whole stack here until Ctrl-C: etcd, Postgres, the services, and a model.

    The model is a simulator unless ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL is set. What is in the data folder is found
    again by the next start.
    """
    from devstack import StackError

    options = stack_options(context, data, latency_ms, **fields)
    try:
        code = asyncio.run(DevSession(context, options).run())
    except StackError as error:
        echo(f"tenure: {error}", err=True)
        code = Exit.REFUSED
    raise SystemExit(code)


def stack_options(context: Context, data: Path | None, latency_ms: int, **fields: Any) -> StackOptions:
    """The stack that the command line describes. Raises UsageError for options that exclude each other."""
    from devstack import StackOptions

    if fields["etcd_endpoints"] and fields["etcd_binary"]:
        raise click.UsageError("--etcd is an etcd that runs, --etcd-binary one to run: give one of them")
    if fields["postgres_dsn"] and fields["postgres_binaries"]:
        raise click.UsageError("--postgres is a server that runs, --postgres-binaries one to run: give one of them")
    options = StackOptions(
        data_dir=data or context.data_dir,
        usual_ports=True,
        anthropic_api_key=context.environment.get("ANTHROPIC_API_KEY", ""),
        anthropic_base_url=context.environment.get("ANTHROPIC_BASE_URL", ""),
        model_latency_ms=latency_ms,
        environment={
            "*": passed_on(context.environment),
            "tools": named_in(fields["tools_config"], context.environment),
        },
        **fields,
    )
    if options.scenario_files and not options.model_is_simulated:
        raise click.UsageError(
            "--scenario is for the simulated model, but ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL is set: unset it"
        )
    return options


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What of our environment reaches the services: where things are, proxies for the way out, telemetry."""
    passed = {name: environment[name] for name in PASSED_ON if name in environment}
    passed.update((name, value) for name, value in environment.items() if name.startswith(PASSED_ON_PREFIX))
    others = environment.get("NO_PROXY") or environment.get("no_proxy")
    passed["NO_PROXY"] = ",".join(filter(None, (others, NOT_PROXIED)))  # the simulator is not outside
    return passed


def named_in(tools_config: Path | None, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a config file asks for as `${NAME}`, as far as they are set."""
    if tools_config is None:
        return {}
    names = VARIABLE.findall(tools_config.read_text(encoding="utf-8", errors="replace"))
    return {name: environment[name] for name in names if name in environment}


class DevSession:
    """One run of the stack, from the first word on the screen to the last."""

    def __init__(self, context: Context, options: StackOptions) -> None:
        from devstack import Stack

        self._context, self._console = context, context.console
        self._status = Status("", console=self._console)
        self._stack: Stack = Stack(options, self._tell)
        self._stopping = asyncio.Event()
        self._starting: asyncio.Task[Any] | None = None

    async def run(self) -> Exit:
        """Returns when everything has ended. Raises StackError when it could not start."""
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
            self._say("stopped before everything ran")
            return Exit.INTERRUPTED
        finally:
            self._status.stop()
        self._say(
            f"Everything has ended. Tasks and files are kept in {self._context.path_of(self._stack.layout.data_dir)}."
        )
        return Exit.OK

    async def _until_stopped(self) -> None:
        """What dies meanwhile is reported and started again."""
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
        """The first says stop, the second means it."""
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

    def _tell(self, what: str) -> None:
        """A word about what is being done, which the next replaces."""
        if self._console.is_terminal:
            self._status.update(f"{what} …")
            self._status.start()
        else:
            self._say(f"{what} …")

    def _report(self, what: str) -> None:
        self._say(f"{time.strftime('%H:%M:%S')} {what}", style="yellow")

    def _say(self, what: str, style: str = "") -> None:
        if self._context.as_json:
            echo(what, err=True)
            return
        with suppress(OSError):  # the terminal may be gone; the stack is to end in order all the same
            self._console.print(what, style=style, soft_wrap=True)
