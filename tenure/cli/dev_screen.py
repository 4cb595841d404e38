"""The screen of `tenure dev`: what a newcomer needs fits a terminal of 80x24, and `-v` adds all addresses and files."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tenure.cli.context import Context
from tenure.runtime.running_stack import DEFAULT_DATA_DIR

if TYPE_CHECKING:
    from devstack import Stack
    from devstack.stores import Store

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
    tenure, verbose = command_prefix(stack), context.is_verbose
    table = _grid()
    if stack.http_url:
        table.add_row("console", f"{stack.http_url}/console/")
    table.add_row("gateway", _gateway_text(stack))
    if stack.workers:
        names = ", ".join(worker.name for worker in stack.workers)
        table.add_row("workers", f"{names}: each runs up to {stack.options.slots} tasks at once")
    table.add_row("model", _model_text(stack))
    table.add_row("sandbox", _sandbox_text(stack, verbose=verbose))
    table.add_row("stores", ", ".join(f"{name} {_store_text(store)}" for name, store in stack.stores.items()))
    table.add_row("on disk", _disk_text(stack, context, tenure))
    for warning in _warnings(stack, verbose=verbose):
        table.add_row("warning", Text(warning, "yellow"))
    table.add_row("", "")
    table.add_row("first task", Text(f'{tenure} submit "{FIRST_GOAL}" --watch', "bold"))
    more = "" if verbose else f" · {tenure} dev -v shows all addresses and files"
    table.add_row("inspect", f"{tenure} list · explain TASK · --help{more}")
    title = Text.assemble("\n", ("Tenure runs.", "bold green"), " Ctrl-C stops it.\n")
    details: list[RenderableType] = ["", _running(stack), "", _files(stack, context)] if verbose else []
    return Group(title, table, *details, "")


def command_prefix(stack: Stack) -> str:
    """Returns the command line prefix with which `tenure` finds this stack from the present directory."""
    is_default = DEFAULT_DATA_DIR.resolve() == stack.layout.data_dir
    name = command_name(sys.argv[0])
    return name if is_default else f"{name} --data {shlex.quote(str(stack.options.data_dir))}"


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
    for worker in stack.workers:
        table.add_row(worker.name, worker.address, "runs tasks")
    table.add_row("model", stack.model_url, "")
    for name, store in stack.stores.items():
        table.add_row(name, _store_address(store), _store_text(store))
    return table


def _gateway_text(stack: Stack) -> str:
    return f"{stack.gateway_address} (gRPC){f', {stack.http_url} (HTTP)' if stack.http_url else ''}"


def _sandbox_text(stack: Stack, *, verbose: bool) -> str | Text:
    """Returns whether the sandbox works, and its limits. If there is no sandbox, the warnings say why."""
    from devstack.child_process import service_state

    limits = service_state(stack.services["tools"].log(), SANDBOX_LOGGER, "limits")
    if not limits:
        return Text("does not work: agents cannot run programs", "yellow")
    return f"works ({limits})" if verbose else "works"


def _disk_text(stack: Stack, context: Context, tenure: str) -> str:
    from devstack.data_dir import size_of

    data = stack.layout.data_dir
    return f"{context.path_of(data)}, {size_of(data) >> 20} MiB: tasks, files and logs; {tenure} dev --reset deletes it"


def _model_text(stack: Stack) -> Text:
    if stack.options.scenario_files:
        from devstack.simulator.scenario import model_of

        models = ", ".join(model_of(file) for file in stack.options.scenario_files)
        return Text(f"SIMULATED by your scenarios: {models}; default model: {stack.options.default_model}", "yellow")
    if stack.options.model_is_simulated:
        return Text("SIMULATED: one scenario for every goal; set ANTHROPIC_API_KEY for a real model", "yellow")
    return Text(f"real{f', {stack.options.model}' if stack.options.model else ''}; web_search is simulated")


def _store_text(store: Store) -> str:
    own = "embedded" if store.embedded else "yours"
    return f"{store.version} ({own}{', for development only' if UNSAFE_ETCD.match(store.version) else ''})"


def _store_address(store: Store) -> str:
    """Returns the address of a store without its password."""
    if "://" not in store.where:
        return store.where if "=" not in store.where else "as given by --postgres"
    parts = urlsplit(store.where)
    return f"{parts.hostname or ''}{f':{parts.port}' if parts.port else ''}{parts.path}"


def _warnings(stack: Stack, *, verbose: bool) -> list[str]:
    """Returns the warnings about taken ports, those of the tool service, and about an etcd release."""
    from devstack.child_process import warnings_of

    warnings = warnings_of(stack.services["tools"].log(), TOOLS_LOGGER)
    release = stack.stores["etcd"].version
    if verbose and UNSAFE_ETCD.match(release):
        warnings.insert(0, f"etcd {release} is for development only: a crash can corrupt its data (docs/etcd.md)")
    if stack.taken_port:
        port = stack.gateway_address.rpartition(":")[2]
        warnings.insert(
            0, f"another process has port {stack.taken_port}: this stack has {port}, also when it starts again"
        )
    return warnings


def _files(stack: Stack, context: Context) -> Table:
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


def _grid() -> Table:
    table = Table.grid(padding=(0, 2, 0, 2), pad_edge=True)
    table.add_column(style="dim", no_wrap=True)
    return table
