"""Control functions for tests. `trace`: a file with a line for each step really made; `gate`: a file to wait for."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenure.control import (
    EffectClass,
    EffectKey,
    EffectScope,
    OwnTool,
    OwnToolContext,
    StepFailed,
    ToolFailed,
    TryAgain,
    Work,
)


def trace(given: dict[str, Any], line: str) -> None:
    with Path(given["trace"]).open("a") as file:
        file.write(f"{line}\n")


async def opened(gate: str) -> None:
    while not Path(gate).exists():
        await asyncio.sleep(0.02)


async def records(work: Work, given: dict[str, Any]) -> dict[str, Any]:
    """Three steps, two effects; step 3 waits at the gate."""
    total = await work.step("total", add_up, given)
    said = await work.call_tool("append_record_unsafe", {"file": given["file"], "line": f"total {total}"})
    await work.step("gate", at_gate, given)
    await work.call_tools(
        [
            ("append_record", {"file": given["file"], "line": "keyed"}),
            ("append_record_unsafe", {"file": given["file"], "line": "last", "delay_ms": given.get("delay_ms", 0)}),
        ]
    )
    return {"total": total, "said": bool(said), "key": work.key.rpartition("/")[2]}


def add_up(given: dict[str, Any]) -> int:
    trace(given, "total")
    return sum(given["numbers"])


async def at_gate(given: dict[str, Any]) -> None:
    trace(given, "gate")
    await opened(given["gate"])


async def failing(work: Work, given: dict[str, Any]) -> str:
    """Fails as told, until the gate is open. What it lives with is recorded."""
    try:
        await work.step("shaky", shaky, given)
    except StepFailed as failed:
        error_class = failed.failure.error_class
    else:
        error_class = "nothing"
    await work.step("last", last, given)
    return error_class


async def shaky(given: dict[str, Any]) -> None:
    trace(given, "shaky")
    raise ValueError("always")


async def last(given: dict[str, Any]) -> None:
    trace(given, "last")
    if not Path(given["gate"]).exists():
        raise {"retry": TryAgain("not yet"), "bug": KeyError("month")}[given["how"]]


async def parallel(work: Work, given: dict[str, Any]) -> Any:
    """Three steps beside each other, of which the second waits at the gate; then one more."""
    await work.step("prepare", trace, given, "prepare")
    parts = [(f"part {number}", part, work, given, number) for number in range(3)]
    try:
        keys = await work.gather(*parts)
    except StepFailed as failed:
        keys = [failed.step, failed.failure.error_class]
    await work.step("gather", trace, given, "gather")
    return keys


async def part(work: Work, given: dict[str, Any], number: int) -> str:
    trace(given, f"part-{number}")
    if number == given.get("fails"):
        raise KeyError(number)
    if number == given.get("exits"):
        raise SystemExit(3)
    if number == 1:
        await opened(given["gate"])
    return work.key.rpartition("/")[2]


async def asking(work: Work, given: dict[str, Any]) -> Any:
    """Asks a person."""
    await work.step("prepare", trace, given, "prepare")
    try:
        return await work.call_tool("ask_user", {"question": given["question"]})
    except ToolFailed as failed:
        return failed.outcome.status


async def spawning(work: Work, given: dict[str, Any]) -> list[str]:
    """Has others do it, and says what they came to."""
    await work.step("prepare", trace, given, "prepare")
    arguments: dict[str, Any] = {name: given[name] for name in ("goals", "tools") if name in given}
    decoded = json.loads(await work.call_tool("spawn_sub_agents", arguments))
    await work.step("gather", trace, given, "gather")
    return [one["result"] for one in decoded["sub_agents"]]


async def stubborn(work: Work, given: dict[str, Any]) -> None:
    """Blocks a thread, and does not let itself be cancelled."""
    while True:
        try:
            await work.step("block", block, given)
        except asyncio.CancelledError:
            trace(given, "cancelled")


def block(given: dict[str, Any]) -> None:
    trace(given, "block")
    time.sleep(30)


async def changed(work: Work, given: dict[str, Any]) -> None:
    """Another function the second time."""
    name = "second" if Path(given["gate"]).exists() else "first"
    await work.step(name, trace, given, name)
    Path(given["gate"]).touch()
    raise TryAgain("again", retry_after_seconds=0)


async def returning(work: Work, given: Any) -> Any:
    """Returns its argument, or a value that cannot be recorded."""
    match given:
        case "no JSON":
            return object()
        case "too large":
            return "x" * 300_000
        case "too large a step":
            return await work.step("large", lambda: "x" * 17_000_000)
        case "both at once":
            await asyncio.gather(work.step("one", asyncio.sleep, 0), work.step("two", asyncio.sleep, 0))
        case "steps":
            for number in range(5):
                await work.step(f"step {number}", int, number)
    return given


async def refunding(work: Work, given: dict[str, Any]) -> list[str]:
    """Refunds an order, once in the tenant."""

    async def refund(context: OwnToolContext, _arguments: Mapping[str, Any]) -> str:
        return f"refunded by {context.task_id}"

    schema = {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    key = EffectKey(("/order",), EffectScope.TENANT, 3600.0)
    tool = OwnTool(
        name="refund",
        description="Refunds an order.",
        input_schema=schema,
        effect=EffectClass.KEYED,
        run=refund,
        effect_key=key,
    )
    (outcome,) = await work.call_own_tools([(tool, {"order": given["order"]})])
    return [outcome.status, outcome.detail]


FUNCTIONS = {
    "records": records,
    "failing": failing,
    "asking": asking,
    "parallel": parallel,
    "spawning": spawning,
    "stubborn": stubborn,
    "changed": changed,
    "returning": returning,
    "refunding": refunding,
}
