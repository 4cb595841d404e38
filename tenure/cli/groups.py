"""Puts the commands into the sections of `tenure --help`, and those that are not daily under nouns."""

from __future__ import annotations

import click

from tenure.cli.admin import admin
from tenure.cli.agents import agents
from tenure.cli.api_keys import api_keys
from tenure.cli.approvers import approvers
from tenure.cli.completion import completion
from tenure.cli.demo.command import demo
from tenure.cli.dev import dev
from tenure.cli.export import export
from tenure.cli.files import files
from tenure.cli.follow import follow
from tenure.cli.group import Group
from tenure.cli.keys import certs, keys
from tenure.cli.leases import leases
from tenure.cli.mcp import mcp
from tenure.cli.replay import replay
from tenure.cli.schedules import schedules
from tenure.cli.send_and_fork import fork, send
from tenure.cli.serve import serve
from tenure.cli.submit import submit
from tenure.cli.tasks import cancel, entries, explain, get, list_tasks, tree, wait
from tenure.cli.tenants import tenants, usage
from tenure.cli.tools import tools
from tenure.cli.trace import trace
from tenure.cli.waits import resume, signal, waits
from tenure.cli.watch import watch
from tenure.cli.webhooks import webhooks
from tenure.cli.workers import refusals, workers


@click.group(cls=Group, short_help="Wait for tasks, send to them, follow them, read their ledger.")
def tasks() -> None:
    """Wait for tasks, send them messages and signals, and read their ledger and their sub-agents."""


def add_commands(root: Group) -> None:
    """Adds all commands to `tenure`."""
    for command in (wait, send, signal, follow, entries, tree, trace, refusals, replay, export):
        tasks.add_command(command)
    tenants.add_command(usage)
    keys.add_command(api_keys)
    keys.add_command(certs)
    root.add_section("Daily", (submit, watch, get, list_tasks, waits, resume, cancel, fork, files, explain))
    root.add_section("Services", (dev, demo, serve, mcp))
    by_subject = (tasks, agents, tools, schedules, webhooks, approvers, leases, workers, tenants, keys, admin)
    root.add_section("More, by subject", by_subject)
    root.add_section("Shell", (completion,))
