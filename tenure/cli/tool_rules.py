"""`tenure tools rules`: a tenant's rules on the arguments of tool calls."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click
from google.protobuf import json_format

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import ago, harmless, make_list, one_line, short_id
from tenure.cli.output import echo
from tenure.cli.parameters import DURATION, LABEL, read_duration
from tenure.client import Client
from tenure.domain.tool_rules import RuleVerdict
from tenure.v1 import admin_service_pb2 as pb
from tenure.v1 import tool_pb2
from tenure.wire.common import duration
from tenure.wire.tool_rules import RULE_VERDICTS

_VERDICTS: Final = frozenset({"verdict", "beyond"})


@click.group(short_help="Say which calls may run, by their arguments.")
def rules() -> None:
    """Rules that allow, ask or deny calls of tools by their arguments, and count them: docs/rules.md."""


@rules.command("set", short_help="Create rules, or replace them.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@with_client
async def set_rules(context: Context, client: Client, file: Path) -> None:
    """Create the rules in FILE (TOML or JSON), or replace those of their names. Each one holds at once."""
    for rule in read_rules(file):
        kept = (await client.admin.SetToolRule(pb.SetToolRuleRequest(tool_rule=rule))).tool_rule
        context.say(kept, f"{kept.name}: {_verdict(kept.verdict)} {kept.tool} holds (version {kept.version})")


@rules.command("list")
@with_client
async def list_rules(context: Context, client: Client) -> None:
    """List the rules of the tenant, by name."""
    listed = (await client.admin.ListToolRules(pb.ListToolRulesRequest())).tool_rules
    context.show_all(listed, _show_all, none="no rules on tool calls; create one: tenure tools rules set FILE")


def _show_all(context: Context, listed: Iterable[tool_pb2.ToolRule]) -> None:
    table = make_list("RULE", "VERDICT", "TOOL", "AGENT", "WHEN", "BOUNDS", "CHANGED", "BY")
    for rule in listed:
        texts = (rule.name, _verdict(rule.verdict), rule.tool, rule.agent, one_line(rule.when, 60), _bounds(rule))
        table.add_row(*texts, ago(rule.update_time), harmless(rule.changed_by))
    context.console.print(table)


def _bounds(rule: tool_pb2.ToolRule) -> str:
    if not rule.HasField("bounds"):
        return ""
    bounds = rule.bounds
    parts = [f"{bounds.count:,} calls"] * bool(bounds.count)
    parts += [f"{bounds.limit} of {bounds.sum_of}"] * bool(bounds.limit)
    parts += [f"for each {bounds.per}"] * bool(bounds.per)
    parts += [f"in {bounds.window.seconds:,} s"] * bool(bounds.window.seconds)
    return ", ".join(parts)


def _verdict(verdict: int) -> str:
    known = RULE_VERDICTS.find(verdict)
    return "?" if known is None else known.value


@rules.command()
@click.argument("name")
@with_client
async def delete(context: Context, client: Client, name: str) -> None:
    """Delete the rule NAME, and what it has counted."""
    deleted = (await client.admin.DeleteToolRule(pb.DeleteToolRuleRequest(name=name))).deleted
    if context.as_json:
        context.emit({"deleted": deleted})
    else:
        echo(f"{name} is deleted" if deleted else f"rule {name} not found", err=not deleted)


@rules.command("try", short_help="Decide recorded calls by a rule, without effect.")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--rule", "name", default="", metavar="NAME", help="A rule that the tenant has, instead of FILE.")
@click.option("--since", type=DURATION, default="1d", show_default=True, help="Only calls of this time.")
@click.option("--agent", default="", help="The agent of these calls, which their records do not have.")
@click.option("--label", "labels", type=LABEL, multiple=True, help="A label of these calls, as NAME=VALUE.")
@with_client
async def try_rule(
    context: Context,
    client: Client,
    file: Path | None,
    name: str,
    since: float,
    agent: str,
    labels: tuple[tuple[str, str], ...],
) -> None:
    """Decide the recorded calls by the rule in FILE, or by the rule NAME, each alone. Nothing changes."""
    if (file is None) == (not name):
        raise click.UsageError("give either FILE or --rule NAME")
    for rule in [None] if file is None else read_rules(file):
        request = pb.TryToolRuleRequest(name=name, tool_rule=rule, agent=agent, labels=dict(labels))
        request.since_time.FromNanoseconds(int((time.time() - since) * 1e9))
        tried = await client.admin.TryToolRule(request)
        if context.as_json:
            context.emit(tried)
        else:
            _show_tried(context, name if rule is None else rule.name, tried)


def _show_tried(context: Context, name: str, tried: pb.TryToolRuleResponse) -> None:
    echo(f"{name}: {tried.allowed:,} allowed, {tried.to_approve:,} to approve, {tried.denied:,} denied")
    if tried.more:
        echo("there are more calls than were decided: give a shorter --since", err=True)
    if not tried.calls:
        return
    table = make_list("TASK", "CALL", "TOOL", "VERDICT", "ACCEPTED", "WHY")
    for call in tried.calls:
        texts = (short_id(call.task_id), call.call_id, harmless(call.tool), _verdict(call.verdict))
        table.add_row(*texts, ago(call.accept_time), harmless(call.reason))
    context.console.print(table)


# The file.


def read_rules(file: Path) -> list[tool_pb2.ToolRule]:
    """Returns the rules in a file of TOML or JSON: one, or a list `rules`. Raises ClickException with the fault."""
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{file}: {error}") from None
    listed = content.get("rules", [content]) if isinstance(content, dict) else content
    if not isinstance(listed, list) or not all(isinstance(each, dict) for each in listed):
        raise click.ClickException(f"{file}: it must be a rule, or have a list of rules under the key rules")
    rules = []
    for number, each in enumerate(listed, start=1):
        try:
            rules.append(json_format.ParseDict(_message(each), tool_pb2.ToolRule()))
        except (json_format.ParseError, TypeError, ValueError) as error:
            raise click.ClickException(f"{file}, rule {number}: {error}") from None
    return rules


def _message(content: dict[str, Any]) -> dict[str, Any]:
    """Returns the rule as JSON of the contract."""
    message = {key: _verdict_name(value) if key in _VERDICTS else value for key, value in content.items()}
    bounds = message.get("bounds")
    if isinstance(bounds, dict):
        message["bounds"] = _message(bounds)
    if "window" in message:
        message["window"] = duration(read_duration(str(message["window"]))).ToJsonString()
    return {key: str(value) if key == "limit" else value for key, value in message.items()}


def _verdict_name(given: object) -> str:
    return f"RULE_VERDICT_{RuleVerdict(str(given).upper())}"
