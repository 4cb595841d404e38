"""`tenure tools effects`: the calls that touched an effect."""

from __future__ import annotations

import json

import click
from rich.text import Text

from tenure.cli.context import Context, with_client
from tenure.cli.formatting import ago, harmless, make_list, short_id
from tenure.cli.output import echo
from tenure.client import Client
from tenure.domain.fencing import describe_epoch
from tenure.v1 import tool_pb2
from tenure.wire.common import CALL_STATES, EFFECT_FACTS, OUTCOME_STATUSES


@click.command(short_help="List the calls that touched an effect, such as the refund of an order.")
@click.option("--tool", default="", metavar="NAME", help="Only calls of this tool.")
@click.option(
    "--key",
    "pairs",
    multiple=True,
    metavar="ARGUMENT=VALUE",
    help="Only effects with this value of the argument, by its name or JSON pointer. Repeatable: all of them.",
)
@with_client
async def effects(context: Context, client: Client, tool: str, pairs: tuple[str, ...]) -> None:
    """List the calls with an effect key, over all tasks of the tenant, in the order of their acceptance.

    EFFECT says what is known from the call: HAPPENED, UNKNOWN (it may have happened), RUNNING or NONE. A call with
    ALREADY_HAPPENED did nothing, because another one had made the effect. docs/effects.md explains effect keys.
    """
    has_calls = False
    table = make_list("ACCEPTED", "TOOL", "KEY", "TASK", "CALL", "STATE", "EFFECT", "EPOCH", "IDEMPOTENCY KEY")
    async for call in client.effects(tool, _key(pairs)):
        has_calls = True
        if context.as_json:
            context.emit(call)
        else:
            table.add_row(*_cells(call))
    if has_calls and not context.as_json:
        context.console.print(table)
    if not has_calls:
        echo("no call has such an effect key", err=True)


def _key(pairs: tuple[str, ...]) -> dict[str, str]:
    """Returns the values by argument. Raises UsageError."""
    key: dict[str, str] = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name or name in key:
            raise click.UsageError(f"--key {pair}: give each argument once, as ARGUMENT=VALUE")
        key[name] = value
    return key


def _cells(call: tool_pb2.EffectCall) -> tuple[Text, ...]:
    state = CALL_STATES.find(call.state)
    status = OUTCOME_STATUSES.find(call.status) if call.status else None
    fact = EFFECT_FACTS.find(call.fact)
    words = [state.value if state else "DELETED", status.value if status else "", call.detail]
    cells = (
        ago(call.accept_time),
        call.tool,
        " ".join(f"{name.removeprefix('/')}={json.dumps(value)}" for name, value in json.loads(call.key_json).items()),
        short_id(call.task_id),
        f"{call.call_id}/{call.call_attempt}",
        " ".join(word for word in words if word),
        fact.value if fact else "?",
        describe_epoch(call.epoch),
        call.idempotency_key,
    )
    return tuple(Text(harmless(cell)) for cell in cells)
