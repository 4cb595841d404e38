"""Bad definitions of tools beside a good one: the good one is always usable, and each bad one harms only itself."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import mcp_types as types
import pytest

from devstack.simulator.tool_checks import anthropic_refusal, openai_refusal
from edges.mcp_client.settings import McpServer
from edges.mcp_client.sources import ToolsOfServer
from edges.mcp_client.stdio_framing import CallWrites
from edges.mcp_client.tool_lists import ListedTools, ToolLists
from services.tools.registry import ToolRegistry
from tenure.domain.fencing import Claims
from tenure.domain.tool_schemas import refused_tools
from tenure.domain.tools import ToolSourceKind
from tenure.v1 import tool_pb2
from tests.support.examples import examples
from tests.support.fix_mcp import Configure, McpServers, offered
from tests.support.fix_tools import Grants, StartTools, listed_sources
from tests.support.hostile_tools import GOOD, SCHEMAS, TOOLS, random_tools

CLAIMS = Claims("tasks/t", "acme", 1, "c", "w")
VERSIONS = ["2025-06-18", "2026-07-28"]


def listed(tools: list[Any], version: str = VERSIONS[0]) -> ListedTools:
    """A page with these tools, as a session reads it."""
    lists = ToolLists()
    lists.begin(version)
    lists.note_request(types.JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/list"))
    result = {"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    page = types.JSONRPCResponse(jsonrpc="2.0", id=1, result=result)
    lists.note_answer(page)
    parsed = types.ListToolsResult.model_validate(page.result, by_name=False)
    return ListedTools(parsed.tools, tuple(lists.left_out))


async def taken(tools: ListedTools) -> tuple[ToolRegistry, tool_pb2.ToolSource]:
    """A registry that has taken the tools of a server `s`, and the status of that server."""
    registry = ToolRegistry([])
    fact = registry.facts.add("s", ToolSourceKind.MCP)
    server = ToolsOfServer(fact, McpServer(command="a"), registry, Mock(), ThreadPoolExecutor(1), Mock())
    await server.take(tools)
    source = next(source for source in registry.facts.listed("acme") if source.name == "s")
    return registry, source


@pytest.mark.parametrize("version", VERSIONS)
async def test_one_bad_tool_leaves_the_others_of_its_page(version: str) -> None:
    bad = {"name": "bad", "inputSchema": {"anyOf": [{"type": "object"}]}}
    inside = {"name": "inside", "inputSchema": {"type": "object", "properties": {"required": ["a"]}}}
    result = listed([GOOD, bad, inside, 7, {"inputSchema": {"type": "object"}}], version)
    assert [tool.name for tool in result.tools] in (["good"], ["good", "inside"])  # newer revisions allow any keyword
    assert "'bad' is left out: its schema has no type" in result.left_out
    assert any(sentence.startswith("a tool without a name is left out: it has no name") for sentence in result.left_out)
    assert "validation error" not in str(result.left_out)


async def test_a_choice_at_the_top_is_callable_through_a_wrapper() -> None:
    registry, source = await taken(listed([GOOD, {"name": "bad", "inputSchema": SCHEMAS["top_any"]}]))
    assert (source.tools, list(source.problems)) == (2, [])
    assert registry.check_call(CLAIMS, "s__bad", '{"arguments": {"b": "x"}}') == {"b": "x"}
    refused = cast("Any", registry.check_call(CLAIMS, "s__bad", '{"arguments": {}}'))
    assert "not valid under any of the given schemas" in refused.content


async def test_a_renamed_key_reaches_the_server_by_its_own_name() -> None:
    registry, _ = await taken(listed([{"name": "list", "inputSchema": SCHEMAS["dollar"]}]))
    (shown,) = registry.definitions(CLAIMS)
    assert list(json.loads(shown.input_schema_json)["properties"]) == ["_filter", "_top"]
    assert registry.check_call(CLAIMS, "s__list", '{"_filter": "x", "_top": 1}') == {"$filter": "x", "$top": 1}
    assert "$top" in str(registry.check_call(CLAIMS, "s__list", '{"_top": "many"}'))


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", [None, *range(examples(5))])
async def test_a_good_tool_is_usable_beside_any_bad_ones(seed: int | None) -> None:
    tools = TOOLS if seed is None else random_tools(seed, 60)
    registry, source = await taken(listed([GOOD, *tools]))
    definitions = registry.definitions(CLAIMS)
    assert "s__good" in [definition.name for definition in definitions]
    assert registry.check_call(CLAIMS, "s__good", '{"text": "x"}') == {"text": "x"}
    for index, definition in enumerate(definitions):
        definition.description.encode()
        tool = {"name": definition.name, "input_schema": json.loads(definition.input_schema_json)}
        for refusal in (anthropic_refusal(index, tool), openai_refusal(index, tool)):
            names = [other.name for other in definitions]
            assert not refusal or refused_tools(refusal, names) == (definition.name,), refusal
    assert source.problem_count <= len(tools)
    assert "validation error" not in "".join(source.problems)


async def test_a_page_without_a_list_is_left_to_the_library() -> None:
    lists = ToolLists()
    lists.begin(VERSIONS[0])
    lists.note_request(types.JSONRPCRequest(jsonrpc="2.0", id=1, method="tools/list"))
    page = types.JSONRPCResponse(jsonrpc="2.0", id=1, result={"tools": "none"})
    lists.note_answer(page)
    assert (lists.left_out, page.result) == ([], {"tools": "none"})
    assert CallWrites(Mock()).lists.left_out == []


async def test_tools_of_a_real_server_are_taken_one_by_one(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    listing = tmp_path / "listing.json"
    listing.write_text(json.dumps([GOOD, *TOOLS]))
    late = {"start_seconds": 0.3, "command": "sleep", "args": ["60"], "unconfined": True}
    config = tools_config(odd=mcp_servers.scripted(str(tmp_path), str(listing)), late=late)
    tools, owner = await tool_service(config_file=config), grants.claim()

    await offered(tools, owner, "odd__good")
    said = await tools.outcome(owner, "1.0", "odd__good", text="hello")
    wrapped = await tools.outcome(owner, "1.1", "odd__top_any", arguments={"b": "x"})
    renamed = await tools.outcome(owner, "1.2", "odd__dollar", _filter="y", _top=3)
    sources = await listed_sources(tools)

    assert [json.loads(outcome.content) for outcome in (said, wrapped, renamed)] == [
        {"text": "hello"},
        {"b": "x"},
        {"$filter": "y", "$top": 3},
    ]
    assert "'no_type' is left out: its schema has no type" in sources["odd"].problems
    assert (sources["odd"].linked, sources["odd"].last_error) == (True, "")
    assert "did not answer `initialize` within 0.3 s: raise start_seconds" in sources["late"].last_error
