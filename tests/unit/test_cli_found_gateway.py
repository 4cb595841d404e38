"""A command without an address: the stack of its own folder, or a question about the stack of another one."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, Final
from unittest.mock import AsyncMock, Mock

import click
import pytest
from click.testing import CliRunner

from devstack.data_dir import hold_folder, write_addresses
from services.gateway.admin import AdminServicer, Identity
from tenure.agents.dev_stack import advice_without_stack, dev_settings
from tenure.cli import found_gateway
from tenure.cli.context import Context, context_of
from tenure.cli.exit_codes import Exit
from tenure.cli.found_gateway import StackOfAnotherFolder
from tenure.cli.main import cli
from tenure.domain.errors import InvalidRequest, NotFound, PermissionDenied
from tenure.runtime import running_stack
from tenure.runtime.rpc.server import RpcServer
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.running_stack import DEFAULT_ADDRESS, FoundGateway, find_gateway
from tenure.runtime.security.tls import ClientTls
from tenure.sdk import connection
from tenure.sdk.client import Client
from tenure.sdk.connection import GatewayConnection
from tenure.sdk.errors import ServerFailed
from tenure.sdk.sync_client import SyncClient
from tenure.v1.admin_service_pb2 import GetCallerResponse
from tenure.v1.agent_service_pb2 import GetAgentRequest

PARTS = ("gateway", "coordinator", "checkpoint", "tools")
FOLDER = "/home/ann/shop/.tenure"


NO_OPTIONS: Final[dict[str, Any]] = {
    "tenant": None,
    "as_json": False,
    "is_verbose": False,
    "api_key_file": None,
    "tls_ca_file": None,
    "tls_certificate_file": None,
    "tls_key_file": None,
}


def gateway(**caller: Any) -> Any:
    """A client of a gateway that answers so."""
    return Mock(admin=Mock(GetCaller=AsyncMock(return_value=GetCallerResponse(**caller))))


def guessed(*, as_json: bool = False) -> Context:
    return Context("127.0.0.1:8470", None, as_json, Path(), Mock(), {}, is_guessed=True)


def person_answers(monkeypatch: pytest.MonkeyPatch, answer: bool) -> list[str]:
    """The questions to a person at a terminal, who gives this answer."""
    asked = list[str]()

    async def is_confirmed(question: str) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr(found_gateway, "is_interactive", lambda: True)
    monkeypatch.setattr(found_gateway, "is_confirmed", is_confirmed)
    return asked


def test_a_gateway_without_an_address_is_guessed(tmp_path: Path) -> None:
    assert context_of({}, address=None, data=tmp_path, **NO_OPTIONS).is_guessed
    assert not context_of({}, address="127.0.0.1:8470", data=tmp_path, **NO_OPTIONS).is_guessed
    with hold_folder(tmp_path):
        write_addresses(tmp_path, {"gateway": "127.0.0.1:1"})
        own = context_of({}, address=None, data=tmp_path, **NO_OPTIONS)
    assert (own.is_guessed, own.address) == (False, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("given", "dialled"),
    [
        ("gateway.internal", "gateway.internal:8470"),
        ("gateway.internal:1", "gateway.internal:1"),
        ("[::1]", "[::1]:8470"),
        ("10.0.0.1, 10.0.0.2:1", "10.0.0.1:8470,10.0.0.2:1"),
        ("one:1,two:1", ""),
        ("http://127.0.0.1:8470", ""),
        ("gateway:", ""),
        ("two words", ""),
        (":8470", ""),
        (",", ""),
    ],
)
def test_client_and_command_read_an_address_alike(given: str, dialled: str, tmp_path: Path) -> None:
    context = context_of({}, address=given, data=tmp_path, **NO_OPTIONS)
    if dialled:
        assert (context.address, context.problem) == (dialled, "")
        assert GatewayConnection(given, None, None, None).address == dialled
    else:
        with pytest.raises(click.UsageError, match="TENURE_ADDRESS"):
            context.run(Mock())
        with pytest.raises(InvalidRequest):
            GatewayConnection(given, None, None, None)


@pytest.mark.parametrize("is_own_stack", [True, False])
def test_client_and_command_have_the_same_certificates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_own_stack: bool
) -> None:
    """Those of the stack that runs here, else those of the variables, but not the paths of `tenure serve all`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TENURE_ADDRESS", raising=False)
    Path("ca.pem").touch()
    named = {"CA": "ca.pem", "CERTIFICATE": "certs/{service}.pem", "KEY": "certs/{service}.key.pem"}
    for name, path in named.items():
        monkeypatch.setenv(f"TENURE_TLS_{name}_FILE", path)
    with ExitStack() as running:
        if is_own_stack:
            Path(".tenure").mkdir()
            running.enter_context(hold_folder(Path(".tenure")))
            write_addresses(Path(".tenure"), {"gateway": "127.0.0.1:1", "certificates": str(tmp_path)})
        context = context_of(os.environ, address=None, data=Path(".tenure"), **NO_OPTIONS)
        opened = Mock()
        monkeypatch.setattr(connection, "GatewayClient", opened)
        GatewayConnection(None, None, None, None)
    stack_tls = ClientTls(tmp_path / "ca.pem", tmp_path / "operator.pem", tmp_path / "operator.key.pem")
    assert opened.call_args.kwargs["tls"] == context.tls
    assert context.tls == (stack_tls if is_own_stack else ClientTls(Path("ca.pem")))


def test_a_command_without_a_gateway_reads_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {"TENURE_ADDRESS": "http://host", "TENURE_TLS_CA_FILE": "/nowhere", "TENURE_API_KEY_FILE": "/nowhere"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert CliRunner().invoke(cli, ["completion", "bash"]).exit_code == 0
    refused = CliRunner().invoke(cli, ["list"])
    assert refused.exit_code == Exit.USAGE
    assert "TENURE_ADDRESS: must be host:port, not 'http://host'" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("is_wanted", [True, False])
async def test_a_person_decides_about_the_stack_of_another_folder(
    monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    asked = person_answers(monkeypatch, is_wanted)
    if is_wanted:
        await guessed().check(gateway(stack_folder=FOLDER))
    else:
        with pytest.raises(StackOfAnotherFolder):
            await guessed().check(gateway(stack_folder=FOLDER))
    (question,) = asked
    assert question.startswith(f"the gateway at 127.0.0.1:8470 is that of the stack in {FOLDER}, which this folder")


@pytest.mark.parametrize("as_json", [True, False])
async def test_a_program_is_refused_at_the_stack_of_another_folder(
    monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    asked = person_answers(monkeypatch, answer=True) if as_json else []
    with pytest.raises(StackOfAnotherFolder, match=f"--data {FOLDER}, --address 127.0.0.1:8470 or TENURE_ADDRESS"):
        await guessed(as_json=as_json).check(gateway(stack_folder=FOLDER))
    assert asked == []


async def test_no_other_gateway_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = person_answers(monkeypatch, answer=False)
    await guessed().check(gateway(installation="tenure"))
    await guessed().check(Mock(admin=Mock(GetCaller=AsyncMock(side_effect=PermissionDenied("not yours")))))
    assert asked == []


def test_client_command_and_worker_find_one_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack of the folder, or of the nearest folder above; a folder above of another user is left out."""
    for name in ("TENURE_ADDRESS", "TENURE_DATA"):
        monkeypatch.delenv(name, raising=False)
    inner = tmp_path / "shop" / "src"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    with ExitStack() as running:
        for number, folder in enumerate((tmp_path, tmp_path / "shop"), 1):
            (folder / ".tenure").mkdir()
            running.enter_context(hold_folder(folder / ".tenure"))
            write_addresses(folder / ".tenure", dict.fromkeys(PARTS, f"127.0.0.1:{number}"))
        found = GatewayConnection(None, None, None, None)
        assert (found.address, found.is_guessed) == ("127.0.0.1:2", False)
        assert find_gateway() == FoundGateway("127.0.0.1:2")
        assert find_gateway(tmp_path / ".tenure").address == "127.0.0.1:1"
        assert dev_settings({})["TENURE_WORKER_COORDINATOR_ADDRESS"] == "127.0.0.1:2"
        assert not advice_without_stack({})
        with monkeypatch.context() as other_user:
            other_user.setattr(os, "getuid", lambda: -1)
            assert find_gateway() == FoundGateway(DEFAULT_ADDRESS, is_guessed=True)
    assert find_gateway() == FoundGateway(DEFAULT_ADDRESS, is_guessed=True)
    assert "no `tenure dev` runs in this folder or above" in advice_without_stack({})
    monkeypatch.setenv("TENURE_ADDRESS", "127.0.0.1:7")
    assert GatewayConnection(None, None, None, None).address == "127.0.0.1:7"


def test_a_killed_stack_is_not_found(tmp_path: Path) -> None:
    """Its file stays, and its process id may be that of any other program."""
    (tmp_path / "dev.json").write_text(json.dumps({"pid": os.getpid(), "gateway": "127.0.0.1:1"}))
    (tmp_path / "dev.lock").touch()
    assert find_gateway(tmp_path) == FoundGateway(DEFAULT_ADDRESS, is_guessed=True)
    with hold_folder(tmp_path):
        assert find_gateway(tmp_path).is_guessed, "another stack is starting there"


@pytest.mark.parametrize("folder", [FOLDER, ""])
async def test_first_call_refuses_a_stack_of_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Also outside of `with`. A gateway in production gets the call."""
    monkeypatch.delenv("TENURE_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    server = RpcServer("127.0.0.1:0")
    server.add("tenure.v1.AdminService", AdminServicer(Mock(), Identity("tenure", folder)))
    async with server:
        monkeypatch.setattr(running_stack, "DEFAULT_ADDRESS", server.address)
        client, sync_client = Client(), SyncClient()
        for call in (
            client.submit("a goal"),
            anext(client.changes()),
            asyncio.to_thread(sync_client.submit, "a goal"),
            asyncio.to_thread(sync_client.raw.agents.GetAgent, GetAgentRequest(name="a")),
        ):
            with pytest.raises(NotFound if folder else (ServerFailed, PeerFailed)) as refused:
                await call
            reason = getattr(refused.value, "reason", "")
            assert not folder or (FOLDER in str(refused.value) and reason == "STACK_OF_ANOTHER_FOLDER")
        with pytest.raises(NotFound) if folder else nullcontext():
            await client.__aenter__()
        await client.close()
        await asyncio.to_thread(sync_client.close)
