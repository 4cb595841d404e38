"""Calls of HTTP tools that end otherwise than by an answer: out of time, stopped, cut off, or in the middle of one."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cryptography.hazmat.primitives import serialization
from pydantic import SecretStr

from edges.http_tools.http_tool import HttpTool
from edges.http_tools.settings import HttpToolSettings
from services.tools.calls.effects import NeverBegan, ToolEffect
from services.tools.calls.records import CallKey, CallRequest
from services.tools.calls.runs import RunningCalls
from services.tools.sending import TELLING_SECONDS
from services.tools.tool import CallContext, Tool, ToolAnswer, ToolFailure, ToolInDoubt, ToolWork
from tenure.domain.fencing import Claims
from tenure.domain.tools import EffectClass, OutcomeStatus
from tests.support.answer_parts import NO_PARTS
from tests.support.certificates import issue
from tests.support.fake_may_begin import Begins
from tests.support.fix_time import PassSeconds
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.scripted_http import ScriptedHttp, answer, scripted_http

KEYED, UNSAFE = EffectClass.KEYED, EffectClass.UNSAFE
NOT_TLS = b"\x17\x03\x03\x00\x20" + bytes(32)
"""A TLS record that cannot be decrypted."""


@asynccontextmanager
async def http_tool(url: str, effect_class: EffectClass, **fields: Any) -> AsyncIterator[Tool]:
    settings = HttpToolSettings(url=url, description="d", effect_class=effect_class, timeout_seconds=CALL_SECONDS)
    async with HttpTool("crm", settings.model_copy(update=fields), NO_PARTS) as opened:
        yield opened.tool


def context() -> CallContext:
    return CallContext("default", "t", "1.0", "t/1.0", 7, lambda _text: None, timeout_seconds=CALL_SECONDS)


async def heard(http: ScriptedHttp) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        await http.heard.wait()


@pytest.mark.parametrize("effect_class", [KEYED, UNSAFE])
async def test_silent_server_times_out(effect_class: Any, pass_seconds: PassSeconds) -> None:
    async with scripted_http(hangs=True) as http, http_tool(http.url, effect_class) as tool:
        calling = asyncio.ensure_future(tool.run(context(), {}))
        await heard(http)
        pass_seconds(CALL_SECONDS)
        with pytest.raises(ToolInDoubt, match="no answer within 60 s") as doubt:
            await calling
        assert (doubt.value.status, doubt.value.detail) == (OutcomeStatus.TIMED_OUT, "TIMEOUT")
    assert len(http.requests) == 1


@pytest.mark.parametrize("effect_class", [KEYED, UNSAFE])
async def test_a_process_paused_at_a_calls_end_leaves_it_in_doubt(effect_class: Any, pass_seconds: PassSeconds) -> None:
    """Then the tool is stopped by its own time and by the service's at once, and can say nothing itself."""
    key = CallKey(uuid.uuid4(), "1.0")
    request = CallRequest(
        key, Claims(f"tasks/{key.task_id}", "default", 10, "claim", "worker"), "crm", effect_class, b"{}"
    )
    async with scripted_http(hangs=True) as http, http_tool(http.url, effect_class) as tool:
        effect = ToolEffect(RunningCalls().add(request, 1), ToolWork(tool, {}), Begins())
        carrying = asyncio.create_task(effect.carry_out(lambda _effect: None))
        await heard(http)
        pass_seconds(CALL_SECONDS + 2 * TELLING_SECONDS)
        with pytest.raises(ToolInDoubt, match=r"60 s,? and was asked to stop"):
            await carrying


async def test_a_fenced_runner_sends_nothing_on_its_connection() -> None:
    vouch = Mock()
    async with scripted_http(answer(200, "paid")) as http, http_tool(http.url, UNSAFE) as tool:
        with pytest.raises(NeverBegan):
            await tool.run(replace(context(), check_may_begin=Mock(side_effect=NeverBegan), mark_not_sent=vouch), {})
    assert (http.connections, http.requests) == (1, [])
    vouch.assert_called_once_with()


async def test_stopped_call_closes_its_connection() -> None:
    async with scripted_http(hangs=True) as http, http_tool(http.url, UNSAFE) as tool:
        calling = asyncio.ensure_future(tool.run(context(), {}))
        await heard(http)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        async with asyncio.timeout(PATIENCE_SECONDS):
            await http.left.wait()


async def test_invalid_request_is_not_sent() -> None:
    """The file's headers are checked; whatever else HTTP does not allow leaves no call in doubt."""
    async with scripted_http(answer(200)) as http:
        headers = {"X-Key": SecretStr("a blank at the end ")}
        async with http_tool(http.url, UNSAFE, headers=headers, connect_seconds=0.05) as tool:
            with pytest.raises(ToolFailure, match="Nothing was done"):
                await tool.run(context(), {})
    assert http.requests == []


async def test_an_address_is_asked_for_as_it_is_written() -> None:
    async with scripted_http(answer(200)) as http, http_tool(f"{http.url}/a;v=2/b;w=1?q=1", UNSAFE) as tool:
        await tool.run(context(), {})
    assert http.requests[0].line == "POST /a;v=2/b;w=1?q=1 HTTP/1.1"


@pytest.mark.parametrize("begun", [b"", answer(200, "hello")[:-1]])
@pytest.mark.parametrize("effect_class", [KEYED, UNSAFE])
async def test_tls_broken_within_an_answer_is_a_lost_answer(effect_class: Any, begun: Any, tmp_path: Path) -> None:
    authority = issue("authority")
    ca_file = tmp_path / "ca.pem"
    ca_file.write_bytes(authority.certificate.public_bytes(serialization.Encoding.PEM))
    async with (
        breaking(begun, authority, tmp_path) as (port, wanted),
        http_tool(f"https://127.0.0.1:{port}/", effect_class, ca_file=ca_file) as tool,
    ):
        if effect_class is UNSAFE:
            with pytest.raises(ToolInDoubt, match="its answer was lost"):
                await tool.run(context(), {})
        else:
            assert await tool.run(context(), {}) == ToolAnswer("done")
    assert len(wanted) == (1 if effect_class is UNSAFE else 2)


@asynccontextmanager
async def breaking(begun: bytes, authority: Any, folder: Path) -> AsyncIterator[tuple[int, list[bytes]]]:
    """A server whose first answer ends in bytes that are not TLS; its port, and what it was asked."""
    byteses: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        byteses.append(await reader.readuntil(b"{}"))
        writer.write(begun if len(byteses) == 1 else answer(200, "done"))
        await writer.drain()
        if len(byteses) == 1:
            os.write(writer.get_extra_info("socket").fileno(), NOT_TLS)
            await reader.read()
        writer.close()

    context = issue("127.0.0.1", ("127.0.0.1",), authority).server(folder)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1], byteses
    finally:
        server.close()
