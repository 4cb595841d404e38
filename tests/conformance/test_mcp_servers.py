"""Tools of real MCP servers: listed, called, and told apart by what they may do."""

from __future__ import annotations

import json
from pathlib import Path

from tenure.domain.tools import OutcomeStatus
from tenure.v1 import tool_pb2
from tests.fix_mcp import Configure, McpServers, offered
from tests.fix_tools import Grants, StartTools


async def test_a_program_s_tools_are_called_and_their_hints_are_classes(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    config = tools_config(
        files=mcp_servers.filesystem(tmp_path / "shared"),
        memory=mcp_servers.memory(tmp_path / "memory.jsonl", effects={"create_entities": "KEYED"}),
    )
    tools, owner = await tool_service(config_file=config), grants.claim()

    found = await offered(tools, owner, "files__.*") | await offered(tools, owner, "memory__.*")

    classes = {name: tool_pb2.EffectClass.Name(tool.effect_class) for name, tool in found.items()}
    assert classes["files__read_text_file"] == "EFFECT_CLASS_PURE"
    assert classes["files__write_file"] == "EFFECT_CLASS_IDEMPOTENT"
    assert classes["files__edit_file"] == "EFFECT_CLASS_UNSAFE"
    assert classes["memory__create_entities"] == "EFFECT_CLASS_KEYED"
    assert "path" in json.loads(found["files__write_file"].input_schema_json)["properties"]
    assert found["files__write_file"].description

    path = str(tmp_path / "shared" / "a.txt")
    written = await tools.outcome(owner, "1.0", "files__write_file", path=path, content="durable\n")
    read = await tools.outcome(owner, "1.1", "files__read_text_file", path=path)
    refused = await tools.outcome(owner, "1.2", "files__read_text_file", path="/etc/passwd")
    assert written.status is OutcomeStatus.SUCCEEDED
    assert read.content == "durable\n"
    assert refused.status is OutcomeStatus.FAILED
    assert "denied" in refused.content
