"""`tenure agents`: agents by name, their revisions and builds, and which revision new tasks get."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from difflib import unified_diff
from pathlib import Path
from typing import Any, Final

import click
from google.protobuf import json_format

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import ago, cut_text, make_list, make_table
from tenure.cli.output import echo
from tenure.cli.parameters import Typed
from tenure.client import Client
from tenure.domain.agents import needs_of_builds, percent_text, read_percent, read_reference, reference
from tenure.domain.errors import InvalidRequest
from tenure.sdk.operations_from_wire import agent_revision_info
from tenure.sdk.submit_options import PARAMETERS
from tenure.sdk.submit_request import spec_of
from tenure.v1 import agent_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.wire.agent_service import KINDS

_AGENT_KEYS: Final = tuple(
    field.name for field in task_pb2.AgentSpec.DESCRIPTOR.fields if field.name not in {"loop", "tools", "parameters"}
)
_KEYS: Final = ("name", *_AGENT_KEYS, *PARAMETERS, "tools", "result_schema", "limits", "policy")


def _revision(text: str) -> tuple[str, int]:
    name, revision = read_reference(text)
    if not revision:
        raise ValueError(f"{text!r} names no revision: write for example {name}@1")
    return name, revision


AGENT: Final = Typed("agent", read_reference)
"""`support`, or `support@7` for a revision."""
REVISION: Final = Typed("agent", _revision)
PERCENT: Final = Typed("percent", read_percent)
"""`10%`, `10` or `0.5%`, in basis points."""
_reason = click.option("--reason", default="", help="Why; it is recorded.")


@click.group(short_help="List agents and their revisions; register, ramp and retire revisions.")
def agents() -> None:
    """Agents by name, and their immutable revisions: `support@7`. docs/versions.md explains them."""


@agents.command("list")
@with_client
async def list_agents(context: Context, client: Client) -> None:
    """List the tenant's agents, and the revision that new tasks get."""
    listed = client.items(client.agents.ListAgents, pb.ListAgentsRequest(), lambda page: page.agents)
    none = "no agents: workers register theirs, and tenure agents register those without code"
    await context.show_each(listed, _show_all, none=none)


def _show_all(context: Context, listed: Iterable[pb.Agent]) -> None:
    table = make_list("AGENT", "KIND", "CURRENT", "RAMP", "NEWEST", "CHANGED", "BY")
    for agent in listed:
        current, newest = (reference(agent.name, one) for one in (agent.current_revision, agent.newest_revision))
        changed, actor = ago(agent.update_time), cut_text(agent.actor, 60)
        table.add_row(agent.name, _kind(agent.kind), current, _ramp(agent) or "-", newest, changed, actor)
    context.console.print(table)


@agents.command()
@click.argument("agent", type=AGENT, metavar="AGENT[@REVISION]")
@with_client
async def show(context: Context, client: Client, agent: tuple[str, int]) -> None:
    """Show the revisions of AGENT, and how many open tasks each of them and each build still has.

    A revision is drained when no open task is pinned to it any more and no new task gets it: the workers of a build
    that nothing else needs may go. With @REVISION, show what the revision fixes.
    """
    name, revision = agent

    read = await client.agents.GetAgent(pb.GetAgentRequest(name=name, revision=revision))
    if context.as_json:
        context.emit(read)
    elif revision:
        echo("\n".join(_lines(read.revisions[0])))
    else:
        _show_agent(context, read)


@agents.command()
@click.argument("one", type=REVISION, metavar="AGENT@REVISION")
@click.argument("other", type=REVISION, metavar="AGENT@REVISION")
@with_client
async def diff(context: Context, client: Client, one: tuple[str, int], other: tuple[str, int]) -> None:
    """Show what differs between the definitions of two revisions."""
    requests = [pb.GetAgentRequest(name=name, revision=revision) for name, revision in (one, other)]
    (before,), (after,) = [(await client.agents.GetAgent(one)).revisions for one in requests]
    if context.as_json:
        context.emit(before)
        context.emit(after)
        return
    names = reference(*one), reference(*other)
    for line in unified_diff(_lines(before), _lines(after), *names, lineterm="", n=1):
        echo(line)


@agents.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--current", "make_current", is_flag=True, help="All new tasks get the revision at once.")
@with_client
async def register(context: Context, client: Client, file: Path, make_current: bool) -> None:
    """Register the agent without code that FILE describes, as TOML or JSON. The same content is the same revision.

    The keys: name, model, system, tools, approve_tools, max_output_tokens, context_window_tokens, temperature, top_p,
    effort, thinking_tokens, tool_choice, seed, extra_body, result_schema, limits and policy. Agents in Python are
    registered by their workers.
    """
    name, definition = read_definition(file)

    request = pb.RegisterAgentRequest(name=name, definition=definition, make_current=make_current)
    registered = await client.agents.RegisterAgent(request)
    if context.as_json:
        context.emit(registered)
        return
    made = reference(name, registered.revision.revision)
    echo(f"{made} is registered" if registered.created else f"{made} has this content already")
    if registered.agent.current_revision != registered.revision.revision:
        current = reference(name, registered.agent.current_revision)
        echo(f"New tasks get {current}. Ramp it: tenure agents ramp {made} 10%", err=True)


@agents.command()
@click.argument("agent", type=REVISION, metavar="AGENT@REVISION")
@click.argument("percent", type=PERCENT)
@_reason
@with_client
async def ramp(context: Context, client: Client, agent: tuple[str, int], percent: int, reason: str) -> None:
    """Send PERCENT of the new tasks to a revision; the current one gets the rest.

    `100%` makes the revision current, `0%` ends its ramp. Tasks that were submitted before keep their revision.
    """
    request = pb.RampAgentRequest(name=agent[0], revision=agent[1], basis_points=percent, reason=reason)
    changed = (await client.agents.RampAgent(request)).agent
    context.say(changed, _where_new_tasks_go(changed))


@agents.command()
@click.argument("agent", type=REVISION, metavar="AGENT@REVISION")
@_reason
@with_client
async def retire(context: Context, client: Client, agent: tuple[str, int], reason: str) -> None:
    """Retire a revision for good: no new task gets it. Its tasks go on."""
    request = pb.RetireAgentRevisionRequest(name=agent[0], revision=agent[1], reason=reason)
    retired = (await client.agents.RetireAgentRevision(request)).revision
    left = f"; {retired.open_tasks:,} of its tasks go on" if retired.open_tasks else ""
    context.say(retired, f"{reference(*agent)} is retired{left}")


def read_definition(file: Path) -> tuple[str, pb.AgentDefinition]:
    """Returns the name and the definition in a file. Raises ClickException with what is wrong."""
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise click.ClickException(f"{file}: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        raise click.ClickException(f"{file}: it must have the key name, and the name is a text")
    if unknown := sorted(set(content) - set(_KEYS)):
        raise click.ClickException(f"{file}: unknown key {unknown[0]}; the keys are {', '.join(_KEYS)}")
    try:
        definition = json_format.ParseDict(_message(content), pb.AgentDefinition())
        if (parameters := _parameters(content)).ByteSize():
            definition.agent.parameters.CopyFrom(parameters)
        return content["name"], definition
    except (json_format.ParseError, TypeError, InvalidRequest) as error:
        raise click.ClickException(f"{file}: {error}") from None


def _message(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the definition as JSON of the contract."""
    agent = {key: content[key] for key in _AGENT_KEYS if key in content}
    if "tools" in content:
        agent["tools"] = {"names": content["tools"]}
    message: dict[str, Any] = {"kind": "AGENT_KIND_MODEL", **({"agent": agent} if agent else {})}
    message |= {key: content[key] for key in ("limits", "policy") if key in content}
    if "result_schema" in content:
        message["result_schema_json"] = json.dumps(content["result_schema"], sort_keys=True)
    return message


def _parameters(content: Mapping[str, Any]) -> task_pb2.ModelParameters:
    """Returns the parameters of the model. Raises InvalidRequest."""
    return spec_of({name: content[name] for name in PARAMETERS if name in content}).agent.parameters


def _kind(kind: pb.AgentKind.ValueType) -> str:
    known = KINDS.find(kind)
    return "" if known is None else {"MODEL": "no code", "PYTHON": "Python", "FUNCTION": "function"}[known.value]


def _ramp(agent: pb.Agent) -> str:
    if not agent.ramp_revision:
        return ""
    return f"{reference(agent.name, agent.ramp_revision)} {percent_text(agent.ramp_basis_points)}"


def _where_new_tasks_go(agent: pb.Agent) -> str:
    current = reference(agent.name, agent.current_revision)
    if not agent.ramp_revision:
        return f"New tasks of {agent.name} get {current}"
    rest = percent_text(10_000 - agent.ramp_basis_points)
    return f"New tasks of {agent.name}: {_ramp(agent)}, {current} {rest}"


def _show_agent(context: Context, read: pb.GetAgentResponse) -> None:
    echo(_where_new_tasks_go(read.agent))
    table = make_table("REVISION", "NEW TASKS", "OPEN TASKS", "BUILDS", "REGISTERED", "BY")
    for revision in read.revisions:
        table.add_row(
            reference(read.agent.name, revision.revision),
            _part(read.agent, revision),
            f"{revision.open_tasks:,}",
            ", ".join(build.build for build in revision.builds) or "any",
            ago(revision.create_time),
            cut_text(revision.creator, 60),
        )
    context.console.print(table)
    needs = needs_of_builds(
        {each.revision: (each.open_tasks, tuple(build.build for build in each.builds)) for each in read.revisions}
    )
    if needs:
        builds = make_table("BUILD", "OPEN TASKS", "ONLY HERE")
        for need in needs:
            builds.add_row(need.build, f"{need.open_tasks:,}", f"{need.only_here:,}")
        context.console.print(builds)


def _part(agent: pb.Agent, revision: pb.AgentRevision) -> str:
    """Returns which new tasks get a revision, or whether old ones still need it."""
    if revision.revision == agent.current_revision:
        return percent_text(10_000 - agent.ramp_basis_points)
    if revision.revision == agent.ramp_revision:
        return percent_text(agent.ramp_basis_points)
    return ("retired" if revision.HasField("retire_time") else "none") + ("" if revision.open_tasks else ", drained")


def _lines(revision: pb.AgentRevision) -> list[str]:
    """Returns a definition as lines, `key: value`, without the fields that are not set. Texts keep their lines."""
    shown = agent_revision_info(revision).to_json()["definition"] or {}
    return [line for key, value in shown.items() for line in _lines_of(key, value)]


def _lines_of(key: str, value: Any) -> Iterator[str]:
    if value in (None, "", 0, [], {}):
        return
    if isinstance(value, str) and "\n" not in value:
        yield f"{key}: {value}"
    elif isinstance(value, str):
        yield f"{key}:"
        yield from (f"  {line}" for line in value.splitlines())
    elif isinstance(value, list) and all(isinstance(each, dict) for each in value):
        for each in value:
            yield f"{key}: {each.get('name', '')}"
            for inner, content in each.items():
                yield from (f"  {line}" for line in _lines_of(inner, content) if inner != "name")
    elif isinstance(value, dict):
        yield f"{key}:"
        yield from (f"  {line}" for line in json.dumps(value, indent=2, ensure_ascii=False).splitlines()[1:-1])
    else:
        yield f"{key}: {json.dumps(value, ensure_ascii=False)}"
