"""Puts the commands into the sections of `tenure --help`, and those that are not daily under nouns."""

from __future__ import annotations

from typing import Final

import click

from tenure.cli.group import SERVE, Group

_TASKS: Final = {
    "wait": "tenure.cli.tasks:wait",
    "send": "tenure.cli.send_and_fork:send",
    "signal": "tenure.cli.waits:signal",
    "follow": "tenure.cli.follow:follow",
    "entries": "tenure.cli.tasks:entries",
    "tree": "tenure.cli.tasks:tree",
    "trace": "tenure.cli.trace:trace",
    "refusals": "tenure.cli.workers:refusals",
    "plans": "tenure.cli.plans:plans",
    "undo": "tenure.cli.undo:undo",
    "replay": "tenure.cli.replay:replay",
    "export": "tenure.cli.export:export",
}


@click.group(cls=Group, places=_TASKS, short_help="Wait for tasks, send to them, follow them, read their ledger.")
def tasks() -> None:
    """Wait for tasks, send them messages and signals, and read their ledger and their sub-agents."""


_DAILY: Final = {
    "submit": "tenure.cli.submit:submit",
    "watch": "tenure.cli.watch:watch",
    "get": "tenure.cli.tasks:get",
    "list": "tenure.cli.task_list:list_tasks",
    "waits": "tenure.cli.waits:waits",
    "resume": "tenure.cli.waits:resume",
    "cancel": "tenure.cli.tasks:cancel",
    "fork": "tenure.cli.send_and_fork:fork",
    "files": "tenure.cli.files:files",
    "explain": "tenure.cli.tasks:explain",
    "top": "tenure.cli.top:top",
}
_SERVICES: Final = {
    "dev": "tenure.cli.dev:dev",
    "demo": "tenure.cli.demo.command:demo",
    SERVE: "tenure.cli.serve:serve",
    "mcp": "tenure.cli.mcp:mcp",
    "outbox": "tenure.cli.outbox:outbox",
}
_BY_SUBJECT: Final = {
    "tasks": "tenure.cli.groups:tasks",
    "agents": "tenure.cli.agents:agents",
    "tools": "tenure.cli.tools:tools",
    "receipts": "tenure.cli.receipts:receipts",
    "schedules": "tenure.cli.schedules:schedules",
    "webhooks": "tenure.cli.webhooks:webhooks",
    "approvers": "tenure.cli.approvers:approvers",
    "leases": "tenure.cli.leases:leases",
    "workers": "tenure.cli.workers:workers",
    "tenants": "tenure.cli.tenants:tenants",
    "keys": "tenure.cli.keys:keys",
    "admin": "tenure.cli.admin:admin",
}


def add_commands(root: Group) -> None:
    """Adds all commands to `tenure`."""
    root.add_section("Daily", _DAILY)
    root.add_section("Services", _SERVICES)
    root.add_section("More, by subject", _BY_SUBJECT)
    root.add_section("Shell", {"completion": "tenure.cli.completion:completion"})
