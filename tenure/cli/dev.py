"""`tenure dev`: the whole stack on this machine, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from rich.status import Status

from tenure.cli.context import Context, pass_context
from tenure.cli.exits import Exit
from tenure.cli.output import echo
from tenure.cli.parameters import REPLICAS

if TYPE_CHECKING:  # what starts processes is loaded when something is to be started, not for `tenure list`
    from tenure.dev.stack import Stack, StackOptions

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
def dev(context: Context, /, data: Path | None, latency_ms: int, **asked: Any) -> None:
    """Run the whole stack here until Ctrl-C: etcd, Postgres, the services, and a model.

    The model is a simulator unless ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL is set. What is in the data folder is found
    again by the next start.
    """
    from tenure.dev.stack import StackError

    options = stack_options(context, data, latency_ms, **asked)
    try:
        code = asyncio.run(Session(context, options).run())
    except StackError as error:
        echo(f"tenure: {error}", err=True)
        code = Exit.REFUSED
    raise SystemExit(code)


def stack_options(context: Context, data: Path | None, latency_ms: int, **asked: Any) -> StackOptions:
    """The stack that the command line describes. Raises UsageError for options that exclude each other."""
    from tenure.dev.stack import StackOptions

    if asked["etcd_endpoints"] and asked["etcd_binary"]:
        raise click.UsageError("--etcd is an etcd that runs, --etcd-binary one to run: give one of them")
    if asked["postgres_dsn"] and asked["postgres_binaries"]:
        raise click.UsageError("--postgres is a server that runs, --postgres-binaries one to run: give one of them")
    options = StackOptions(
        data_dir=data or context.data_dir,
        usual_ports=True,
        anthropic_api_key=context.environment.get("ANTHROPIC_API_KEY", ""),
        anthropic_base_url=context.environment.get("ANTHROPIC_BASE_URL", ""),
        model_latency_ms=latency_ms,
        environment={
            "*": passed_on(context.environment),
            "tools": named_in(asked["tools_config"], context.environment),
        },
        **asked,
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


class Session:
    """One run of the stack, from the first word on the screen to the last."""

    def __init__(self, context: Context, options: StackOptions) -> None:
        from tenure.dev.stack import Stack

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
        from tenure.dev.stack.supervisor import keep_running

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
        from tenure.cli.dev_screen import screen_of

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
