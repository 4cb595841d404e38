"""Functions for the tests: a payment at a bank that repeats by their key, or by none."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenure.control import OwnTool, OwnToolContext, TryAgain, Work
from tenure.domain.tools import EffectClass


def pay(bank: str, key: str) -> str:
    """A bank: one payment for each key."""
    path = Path(bank)
    payments = json.loads(path.read_text()) if path.exists() else {}
    payments[key] = payments.get(key, 0) + 1
    path.write_text(json.dumps(payments))
    return key


def payments(bank: Path) -> int:
    """How many payments were made: repeats with the same key are none."""
    return len(json.loads(bank.read_text()))


async def refund(work: Work, given: dict[str, Any]) -> str:
    """Right: a repeat of the step has the same key."""
    await work.step("pay", lambda: pay(given["bank"], work.key))
    return "paid"


async def refund_with_a_random_key(work: Work, given: dict[str, Any]) -> str:
    """Wrong: a repeat of the step is another payment."""
    await work.step("pay", lambda: pay(given["bank"], uuid.uuid4().hex))
    return "paid"


async def book(work: Work, given: dict[str, Any]) -> str:
    """A step, then a tool call, then a step."""
    line = await work.step("line", lambda: f"order {given['order']}")
    await work.call_tool("append_record", {"file": "books", "line": line})
    await work.step("tell", lambda: "told")
    return "booked"


async def invoices(work: Work, given: dict[str, Any]) -> list[str]:
    """Tries again in an hour while there is none."""
    return list(await work.step("read", read_invoices, given["folder"]))


def read_invoices(folder: str) -> list[str]:
    names = [path.name for path in Path(folder).iterdir()]
    if not names:
        raise TryAgain("there are no invoices yet", retry_after_seconds=3600)
    return names


async def pay_once(context: OwnToolContext, arguments: Mapping[str, Any]) -> str:
    return pay(arguments["bank"], context.idempotency_key)


PAY = OwnTool(
    name="pay",
    description="Pay an order.",
    input_schema={"type": "object", "properties": {"bank": {"type": "string"}}},
    effect=EffectClass.KEYED,
    run=pay_once,
)


async def refund_by_tool(work: Work, given: dict[str, Any]) -> str:
    """Right: the tool runs behind the fence, with a key of the call."""
    (outcome,) = await work.call_own_tools([(PAY, given)])
    return outcome.status.value


FUNCTIONS = {
    "refund_by_tool": refund_by_tool,
    "invoices": invoices,
    "refund": refund,
    "refund_with_a_random_key": refund_with_a_random_key,
    "book": book,
}
