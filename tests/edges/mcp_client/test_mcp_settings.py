"""The config file's MCP servers: what people paste is taken, and the error names the place of what cannot be meant."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mcp_types as types
import pytest

from edges.mcp_client.calling import described, unusable
from edges.mcp_client.settings import McpServer
from edges.providers.settings import ProviderSettings
from edges.tools_config import read_config
from services.tools.sources import offered
from tenure.domain.tools import EffectClass, ToolDefinition
from tenure.runtime.settings import ConfigurationError
from tenure.v1 import tool_pb2 as pb
from tenure.wire.tool import tool_to_domain

PASTED = """
{"mcpServers": {
  "filesystem": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/tmp"]},
  "remote": {"type": "http", "url": "https://mcp.example.com/mcp", "headers": {"Authorization": "Bearer ${TOKEN}"}}
}}
"""


def written(folder: Path, content: object) -> Path:
    path = folder / "tools.yaml"
    path.write_text(content if isinstance(content, str) else json.dumps({"mcp_servers": content}))
    return path


@pytest.mark.parametrize(
    ("other", "is_refused"),
    [
        ({"writable_paths": ["/srv/a"]}, True),
        ({"writable_paths": ["/srv/a/below"]}, True),
        ({"writable_paths": ["/srv"]}, True),
        ({"writable_paths": ["/srv/ab"]}, False),
        ({"writable_paths": ["/srv/a"], "disabled": True}, False),
        ({"read_only_paths": ["/srv/a"]}, False),
    ],
)
@pytest.mark.parametrize("uid", [0, 1000])
def test_programs_with_their_own_uids_share_no_writable_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, object], is_refused: bool, uid: int
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: uid)
    file = written(
        tmp_path, {"git": {"command": "git", "writable_paths": ["/srv/a"]}, "files": {"command": "f", **other}}
    )
    if is_refused and uid == 0:
        with pytest.raises(ConfigurationError, match="files and git both write to /srv/a"):
            read_config(file, {})
    else:
        assert len(read_config(file, {}).mcp_servers) == 2


def test_settings_of_other_clients_are_accepted(tmp_path: Path) -> None:
    servers = read_config(written(tmp_path, PASTED), {"TOKEN": "secret"}).mcp_servers
    assert servers["filesystem"].args[0] == "-y"
    assert servers["remote"].headers == {"Authorization": "Bearer secret"}


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        ({}, "either command or url"),
        ({"command": "a", "url": "http://b"}, "either command or url"),
        ({"url": "ftp://b"}, "mcp_servers.it.url"),
        ({"url": "http://b", "args": ["x"]}, "has no args"),
        ({"type": "http", "command": "a"}, "type http does not match"),
        ({"url": "http://b/mcp"}, "use TLS, or set allow_insecure: true"),
        ({"command": "a", "allow_insecure": True}, "has no allow_insecure"),
        ({"type": "sse", "url": "http://b"}, "mcp_servers.it.type"),
        ({"command": "a", "headers": {"x": "y"}}, "has no headers"),
        ({"command": "a", "max_servers": 2}, "sandbox: true"),
        ({"command": "a", "read_only_paths": ["b"]}, "read_only_paths must be absolute"),
        ({"command": "a", "writable_paths": ["b"]}, "writable_paths must be absolute"),
        ({"command": "a", "writable_paths": ["/"]}, "writable_paths may not contain /:"),
        ({"command": "a", "read_only_paths": ["/proc/1"]}, "read_only_paths may not contain /proc/1:"),
        ({"command": "a", "cwd": "b"}, "cwd must be absolute"),
        ({"command": "a", "sandbox": True, "writable_paths": ["/b"]}, "in the sandbox has no writable_paths"),
        ({"command": "a", "sandbox": True, "network": True}, "in the sandbox has no network"),
        ({"command": "a", "unconfined": True, "sandbox": True}, "unconfined: true excludes sandbox"),
        ({"command": "a", "unconfined": True, "writable_paths": ["/b"]}, "excludes writable_paths"),
        ({"url": "http://b", "unconfined": True}, "has no unconfined"),
        ({"command": "a", "sandbox": True, "read_only_paths": ["/work/app"]}, "under /work"),
        ({"command": "a", "effects": {"t": "SAFE"}}, "mcp_servers.it.effects.t"),
        ({"command": "a", "retries": 2}, "mcp_servers.it.retries"),
    ],
)
def test_invalid_settings_are_refused(tmp_path: Path, server: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        read_config(written(tmp_path, {"it": server}), {})


@pytest.mark.parametrize("name", ["a__b", "a_", "_a", "", "a b", "a" * 33])
def test_names_that_could_be_taken_for_others_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="mcp_servers"):
        read_config(written(tmp_path, {name: {"command": "a"}}), {})


def taken_from(settings: McpServer, listed: list[types.Tool]) -> tuple[dict[str, ToolDefinition], list[str]]:
    return offered("s", described(listed), settings.rules, unusable(listed))


def tool(name: str, **hints: bool) -> types.Tool:
    annotations = types.ToolAnnotations(**hints) if hints else None
    return types.Tool(name=name, input_schema={"type": "object"}, annotations=annotations)


def test_the_configured_class_outranks_the_annotation() -> None:
    listed = [
        tool("read", read_only_hint=True),
        tool("put", idempotent_hint=True, destructive_hint=True),
        tool("drop", destructive_hint=True),
        tool("bare"),
        tool("liar", read_only_hint=True),
    ]
    taken, problems = taken_from(McpServer(command="a", effects={"liar": EffectClass.UNSAFE}), listed)
    assert {name: one.effect_class for name, one in taken.items()} == {
        "read": EffectClass.PURE,
        "put": EffectClass.IDEMPOTENT,
        "drop": EffectClass.UNSAFE,
        "bare": EffectClass.UNSAFE,
        "liar": EffectClass.UNSAFE,
    }
    assert problems == []


def test_only_allowed_tools_are_taken_and_list_errors_reported() -> None:
    settings = McpServer(command="a", allow=frozenset({"one", "gone"}), effects={"typo": EffectClass.PURE})
    taken, problems = taken_from(settings, [tool("one"), tool("two"), tool("one"), tool("")])
    assert [(name, one.name) for name, one in taken.items()] == [("one", "s__one")]
    assert [problem.partition(" ")[0] for problem in problems] == ["'one'", "'gone'", "'typo'"]


def test_task_only_tools_are_left_out() -> None:
    long_lasting = types.Tool(
        name="t", input_schema={"type": "object"}, execution=types.ToolExecution(task_support="required")
    )
    taken, problems = taken_from(McpServer(command="a"), [long_lasting, tool("one")])
    assert (list(taken), problems) == (["one"], ["'t' is left out: it can be called as an MCP task only"])


@pytest.mark.parametrize(
    ("description", "schema"),
    [
        ("d" * 10_000, {"type": "object"}),
        ("d" * 20_000, {"type": "object"}),
        ("", {"type": "object", "description": "d" * 100_000}),
        ("", {"type": "object", "description": "d" * 140_000}),
    ],
)
def test_mcp_and_provider_descriptions_are_equal(description: str, schema: dict[str, object]) -> None:
    listed = [types.Tool(name="t", description=description, input_schema=schema)]
    tool_definition = pb.ToolDefinition(
        name="t", description=description, input_schema_json=json.dumps(schema), effect_class=pb.EFFECT_CLASS_UNSAFE
    )
    of_server = taken_from(McpServer(command="a"), listed)
    of_provider = offered(
        "s", [tool_to_domain(tool_definition)], ProviderSettings.model_validate({"address": "127.0.0.1:1"}).rules
    )
    assert of_server == of_provider


def test_the_protocol_is_imported_only_with_a_server() -> None:
    program = "import sys, edges.tools; sys.exit('mcp' in sys.modules or 'mcp_types' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
