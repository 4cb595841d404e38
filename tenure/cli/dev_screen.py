"""The one screen of `tenure dev`: what runs where, and what to do with it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tenure.cli.context import DEFAULT_DATA_DIR, Context

if TYPE_CHECKING:
    from tenure.dev.stack import Stack
    from tenure.dev.stack.stores import Store

FIRST_GOAL: Final = "Research our competitors' pricing and draft a competitive analysis"
ROLES: Final = {
    "gateway": "the public API: gRPC, with reflection",
    "coordinator": "leases and fencing tokens",
    "checkpoint": "the work ledger",
    "tools": "runs tools, in a sandbox",
}
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
    return "tenure" if usual else f"tenure --data {stack.options.data_dir}"


def _running(stack: Stack) -> Table:
    table = _grid()
    for name, service in stack.services.items():
        table.add_row(
            name, service.address, ROLES.get(name) or f"carries out up to {stack.options.slots} tasks at once"
        )
    table.add_row("model", stack.model_url, _model_words(stack))
    for name, store in stack.stores.items():
        table.add_row(name, _store_address(store), _store_words(store))
    return table


def _model_words(stack: Stack) -> Text:
    if stack.options.model_is_simulated:
        return Text(
            "SIMULATED: it plays a research scenario, whatever the goal; set ANTHROPIC_API_KEY for a real one", "yellow"
        )
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
    etcd = stack.stores["etcd"]
    if not UNSAFE_ETCD.match(etcd.version):
        return []
    told = f"etcd {etcd.version} is for development only: a crash can corrupt its data. Production: 3.5.3 or newer."
    return [Text(f"  {told}\n", "yellow")]


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
    table.add_row("look", f"{tenure} list · {tenure} leases · {tenure} workers · {tenure} --help")
    table.add_row("stop", "Ctrl-C")
    return table


def _grid() -> Table:
    table = Table.grid(padding=(0, 2, 0, 2), pad_edge=True)
    table.add_column(style="dim", no_wrap=True)
    return table
