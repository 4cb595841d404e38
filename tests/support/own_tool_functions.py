"""Control functions whose effects are own tools of the worker. Each effect is a line of the file `trace`.

`gate`: a file for which the tool waits before its effect. A line names the effect, the process and the key.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenure.control import EffectClass, EffectUnknown, OwnTool, OwnToolContext, ToolFailed, Work

SCHEMA = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("trace", "gate", "line", "how")},
    "required": ["trace", "line"],
}


def note(path: str, context: OwnToolContext, line: str) -> None:
    with Path(path).open("a") as file:
        file.write(f"{line} {os.getpid()} {context.idempotency_key}\n")


async def write(context: OwnToolContext, arguments: Mapping[str, Any]) -> str:
    """Says that it began, waits at its gate, and has its effect."""
    note(arguments["trace"], context, f"began-{arguments['line']}")
    while arguments.get("gate") and not Path(arguments["gate"]).exists():
        await asyncio.sleep(0.02)
    note(arguments["trace"], context, arguments["line"])
    match arguments.get("how"):
        case "large":
            return "x" * 17_000_000
        case "fail":
            raise ValueError("out of ink")
        case "unknown":
            raise EffectUnknown("the post office hung up")
        case "sleep":
            await asyncio.sleep(30)
    return f"attempt {context.call_attempt}"


def tool(effect: str, **more: Any) -> OwnTool:
    name = f"write_{effect.lower()}"
    return OwnTool(
        name=more.pop("name", name),
        description="Writes a line.",
        input_schema=SCHEMA,
        effect=EffectClass(effect),
        run=write,
        **more,
    )


async def writing(work: Work, given: dict[str, Any]) -> list[str]:
    """One call of each class that it is given, in parallel. Returns what each came to."""
    extra = given.get("tool", {})
    calls = [
        (tool(effect, **extra), {**given["arguments"], "line": effect}) for effect in given.get("effects", ["UNSAFE"])
    ]
    outcomes = await work.call_own_tools(calls)
    return [f"{outcome.status}: {outcome.content}" for outcome in outcomes]


async def conflicting(work: Work, given: dict[str, Any]) -> str:
    """Calls an own tool with the name of a tool of the service."""
    try:
        (outcome,) = await work.call_own_tools([(tool("PURE", name="read_file"), given["arguments"])])
    except ToolFailed as failed:
        return str(failed)
    return f"{outcome.status}: {outcome.detail}"


FUNCTIONS = {"writing": writing, "conflicting": conflicting}
