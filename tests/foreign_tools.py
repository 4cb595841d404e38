"""The tool service with record tools whose schema no model provider accepts, so models are shown another one."""

from __future__ import annotations

import json
import sys
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from edges.tools import main
from services.tools import registry, toolbox
from services.tools.builtin.records import record_tools
from services.tools.schemas import untrusted_schema
from services.tools.tool import Tool


def foreign_tools(directory: Path | None, threads: Executor) -> list[Tool]:
    """The record tools, as a source of tools brings them."""
    return [_foreign(tool) for tool in record_tools(directory, threads)]


def _foreign(tool: Tool) -> Tool:
    schema = {**json.loads(tool.definition.input_schema_json), "anyOf": [{"required": ["line"]}]}
    return replace(tool, definition=replace(tool.definition, input_schema_json=json.dumps(schema)))


if __name__ == "__main__":
    with (
        patch.object(toolbox, "record_tools", foreign_tools),
        patch.object(registry, "built_in_schema", untrusted_schema),
    ):
        sys.exit(main())
