"""Tools of real MCP servers: listed, called, and classified by their annotations."""

from __future__ import annotations

import asyncio
import json
import re
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from tenure.domain.texts import kept_as
from tenure.domain.tools import OutcomeStatus
from tenure.v1 import tool_pb2
from tests.support.fix_mcp import Configure, McpServers, offered
from tests.support.fix_tools import (
    TENANT,
    Grants,
    Outside,
    StartTools,
    listed_sources,
)
from tests.support.images import gif, png
from tests.support.patience import PATIENCE_SECONDS


async def test_a_programs_tools_have_classes_from_their_annotations(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    memory = tmp_path / "memory"
    memory.mkdir()
    config = tools_config(
        files=mcp_servers.filesystem(tmp_path / "shared"),
        memory=mcp_servers.memory(memory / "memory.jsonl", effects={"create_entities": "KEYED", "create": "PURE"}),
        broken={"command": "/no/such/program", "args": ["--token=hush-hush-hush"]},
    )
    tools, owner = await tool_service(config_file=config), grants.claim()

    match = await offered(tools, owner, "files__.*") | await offered(tools, owner, "memory__.*")

    classes = {name: tool_pb2.EffectClass.Name(tool.effect_class) for name, tool in match.items()}
    assert classes["files__read_text_file"] == "EFFECT_CLASS_PURE"
    assert classes["files__write_file"] == "EFFECT_CLASS_IDEMPOTENT"
    assert classes["files__edit_file"] == "EFFECT_CLASS_UNSAFE"
    assert classes["memory__create_entities"] == "EFFECT_CLASS_KEYED"
    assert "path" in json.loads(match["files__write_file"].input_schema_json)["properties"]
    assert match["files__write_file"].description

    sources = await listed_sources(tools)
    assert sources["memory"].kind == tool_pb2.TOOL_SOURCE_KIND_MCP
    assert sources["memory"].linked
    assert sources["memory"].tools == len([name for name in match if name.startswith("memory__")])
    assert list(sources["memory"].problems) == ["'create' is named in the config file, but there is no such tool"]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not (broken := (await listed_sources(tools))["broken"]).last_error:
            await asyncio.sleep(0.05)
    assert (broken.linked, broken.tools, "hush" in str(broken)) == (False, 0, False)

    path = str(tmp_path / "shared" / "a.txt")
    written = await tools.outcome(owner, "1.0", "files__write_file", path=path, content="durable\n")
    read = await tools.outcome(owner, "1.1", "files__read_text_file", path=path)
    refused = await tools.outcome(owner, "1.2", "files__read_text_file", path="/etc/passwd")
    assert written.status is OutcomeStatus.SUCCEEDED
    assert read.content == "durable\n"
    assert refused.status is OutcomeStatus.FAILED
    assert "denied" in refused.content


@pytest.mark.nightly
async def test_every_kind_of_answer_over_either_transport(
    tool_service: StartTools, grants: Grants, outside: Outside, mcp_servers: McpServers, tools_config: Configure
) -> None:
    async with mcp_servers.everything_over_http() as port:
        config = tools_config(web={"url": f"http://127.0.0.1:{port}/mcp"}, pipe=mcp_servers.everything())
        tools, owner = await tool_service(config_file=config), grants.claim()
        assert (await offered(tools, owner, "web__.*")).keys() >= {"web__echo", "web__get-tiny-image"}
        result = await offered(tools, owner, "pipe__.*")
        assert not any("sampling" in name or "elicitation" in name for name in result)  # for clients that offer it
        for step, server in ((1, "web"), (2, "pipe")):
            image = await tools.outcome(owner, f"{step}.0", f"{server}__get-tiny-image")
            weather = await tools.outcome(owner, f"{step}.1", f"{server}__get-structured-content", location="Chicago")
            wrong = await tools.outcome(owner, f"{step}.2", f"{server}__echo", message=7)
            slow = await tools.events(
                owner, f"{step}.3", f"{server}__trigger-long-running-operation", duration=0.4, steps=2
            )

            kept = re.search(r"kept in the workspace's file (outputs/[^\]]*)\]", image.content)
            assert kept is not None
            assert (outside.workspace(owner) / kept[1]).read_bytes().startswith(b"\x89PNG")
            assert "temperature" in weather.content
            assert wrong.status is OutcomeStatus.INVALID_ARGUMENTS
            progress = "".join(event.output.text for event in slow if event.HasField("output"))
            assert "(2/2)" in progress
            assert slow[-1].outcome.status == tool_pb2.OUTCOME_STATUS_SUCCEEDED


async def test_calls_carry_key_and_epoch_and_lists_are_followed(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure
) -> None:
    async with mcp_servers.modern_over_http() as port:
        settings = {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"Authorization": "Bearer of ours"}, "pin": False}
        tools, owner = await tool_service(config_file=tools_config(web=settings)), grants.claim(epoch=17)
        await offered(tools, owner, "web__seen")

        seen = json.loads((await tools.outcome(owner, "1.0", "web__seen")).content)
        await tools.outcome(owner, "1.1", "web__grow")
        await offered(tools, owner, "web__grown")

        assert seen["headers"]["idempotency-key"] == f"{owner.task_id}/1.0"
        assert seen["headers"]["x-fencing-epoch"] == "17"
        assert seen["headers"]["authorization"] == "Bearer of ours"
        assert seen["headers"]["mcp-protocol-version"] >= "2026"
        assert seen["meta"]["tenure/task_id"] == owner.task_id
        assert seen["meta"]["tenure/tenant"] == TENANT
        assert (seen["meta"]["tenure/call_id"], seen["meta"]["tenure/epoch"]) == ("1.0", 17)


@pytest.mark.nightly
async def test_a_program_has_its_configured_environment_and_tools(
    tool_service: StartTools, grants: Grants, mcp_servers: McpServers, tools_config: Configure, tmp_path: Path
) -> None:
    (tmp_path / "here").mkdir()
    settings = {"env": {"GIVEN": "yes"}, "cwd": str(tmp_path / "here"), "allow": ["look", "ask", "meta"]}
    config = tools_config(odd=mcp_servers.scripted(str(tmp_path), **settings))
    tools, owner = await tool_service(config_file=config), grants.claim()
    result = await offered(tools, owner, "odd__.*")

    looked = json.loads((await tools.outcome(owner, "1.0", "odd__look", port=1, paths=[])).content)
    wanted = await tools.outcome(owner, "1.1", "odd__ask")
    refused = await tools.outcome(owner, "1.2", "odd__die", file="a")

    assert {name for name in result if name.startswith("odd__")} == {"odd__look", "odd__ask", "odd__meta"}
    assert set(looked["environment"]) - {"LC_CTYPE"} == {"PATH", "GIVEN"}
    assert looked["cwd"] == str(tmp_path / "here")
    assert json.loads(wanted.content)["code"] < 0  # no model of ours for a server
    assert refused.status is OutcomeStatus.INVALID_ARGUMENTS


def part(content: bytes, kind: str = "image/png") -> dict[str, Any]:
    return {"type": "image", "data": b64encode(content).decode(), "mimeType": kind}


async def test_images_of_a_tool_are_recorded_as_references(
    tool_service: StartTools, grants: Grants, outside: Outside, mcp_servers: McpServers, tools_config: Configure
) -> None:
    config = tools_config(odd=mcp_servers.scripted())
    tools, owner = await tool_service(config_file=config), grants.claim()
    await offered(tools, owner, "odd__parts")
    picture, other, bomb = png(64, 48), gif(7, 5), png(100_000, 10_000)
    parts = [part(picture), part(other, "image/png"), part(picture), part(picture[:-1]), part(bomb), part(b"no image")]

    outcome = await tools.outcome(owner, "1.0", "odd__parts", parts=parts)

    kept = [(image.kept, image.media_type, image.width, image.height) for image in outcome.images]
    one, two = kept_as(picture), kept_as(other)
    assert kept == [(one, "image/png", 64, 48), (two, "image/gif", 7, 5), (one, "image/png", 64, 48)]
    lines = outcome.content.splitlines()
    assert lines[0] == f"[image (image/png), {len(picture)} bytes: kept in the workspace's file {one.path}]"
    assert lines[3].endswith("not shown: it is a PNG image that is damaged or ends too soon]")
    assert lines[4].endswith("not shown: it has 100000 x 10000 pixels, and models take 8000 a side]")
    assert lines[5].endswith("not shown: it is not a PNG, JPEG, GIF or WebP image]")
    files = sorted(path.name for path in (outside.workspace(owner) / "outputs").iterdir())
    assert len(files) == 5
    assert (outside.workspace(owner) / one.path).read_bytes() == picture
    assert await tools.outcome(owner, "1.0", "odd__parts", parts=parts) == outcome, "the record has the references"
