"""Runs the program EXAMPLE as it is, and notes in the file RUNS what each run of a tool came to.

A system that honours idempotency keys sees a repeat with the same key as the same request. The examples write the key
into what the tool returns, so two runs of a call that return the same are one effect.
"""

from __future__ import annotations

import json
import os
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tenure.control.own_tools import OwnTool, OwnToolContext

check = OwnTool.__post_init__


def note(tool: OwnTool) -> None:
    """Lets the tool note each run."""
    check(tool)
    run = tool.run

    async def noted(context: OwnToolContext, arguments: Mapping[str, Any]) -> str:
        content = await run(context, arguments)
        with Path(os.environ["RUNS"]).open("a") as file:
            file.write(json.dumps([tool.name, context.call_id, content]) + "\n")
        return content

    object.__setattr__(tool, "run", noted)


OwnTool.__post_init__ = note  # type: ignore[assignment, method-assign]
runpy.run_path(os.environ["EXAMPLE"], run_name="__main__")
