"""A shop whose tools are own tools of the worker. Each effect is a line of the file `trace`, as in own_tool_functions.

UNDO_TOOLS: the name of the function's own tool for undos: a worker with another one has other code.
"""

from __future__ import annotations

import os
from typing import Any

from tenure.agents import function
from tenure.control import EffectClass, OwnTool, Work, compensate_with
from tests.support.own_tool_functions import SCHEMA, write


def tool(name: str, effect: EffectClass, **more: Any) -> OwnTool:
    return OwnTool(name=name, description=name, input_schema=SCHEMA, effect=effect, run=write, **more)


FILES = {"trace": "/arguments/trace", "gate": "/arguments/gate"}
CANCEL = tool(os.environ.get("UNDO_TOOLS", "cancel_order"), EffectClass.KEYED)
CANCELLED = compensate_with(CANCEL, {**FILES, "line": {"literal": "cancelled"}})
ORDER = tool("place_order", EffectClass.KEYED, compensation=CANCELLED)
REFUNDED = compensate_with("append_record", {"file": "/arguments/how", "line": {"literal": "refunded"}})
PAY = tool("pay_order", EffectClass.UNSAFE, compensation=REFUNDED)


@function(undo_tools=[CANCEL])
async def shopping(work: Work, given: dict[str, Any]) -> str:
    """Two orders and a payment. A gate holds the cancellations, but not the orders."""
    files = {name: given[name] for name in ("trace", "gate")}
    for line in ("tea", "milk"):
        await work.call_own_tools([(ORDER, {**files, "line": line})])
    await work.call_own_tools([(PAY, {"trace": given["trace"], "line": "pay", "how": given["file"]})])
    return "bought"


FUNCTIONS = [shopping]
