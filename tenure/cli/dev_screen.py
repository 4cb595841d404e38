"""The one screen of `tenure dev`: what runs where, and what to do with it."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tenure.cli.context import DEFAULT_DATA_DIR, Context
from tenure.dev.simulator.library import model_of
from tenure.dev.stack.last_words import fact_of, warnings_of

if TYPE_CHECKING:
    from tenure.dev.stack import Stack
    from tenure.dev.stack.stores import Store

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
    own, found = Path(started_as).absolute(), shutil.which("tenure")
    if own.name != "tenure" or (found is not None and Path(found).absolute() == own):
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
    told = warnings_of(stack.services["tools"].log(), TOOLS_LOGGER)
    release = stack.stores["etcd"].version
    if UNSAFE_ETCD.match(release):
        told.insert(0, f"etcd {release} is for development only: a crash can corrupt its data (docs/etcd.md)")
    table = _grid()
    for one in told:
        table.add_row("warning", Text(one, "yellow"))
    return [table, Text("")] if told else []


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
