"""A command without an address: the stack of its own folder, or a question about the stack of another one."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import click
import pytest

from devstack.data_dir import write_addresses
from tenure.cli.context import Context, context_of
from tenure.cli.found_gateway import StackOfAnotherFolder
from tenure.domain.errors import NotFound, Unavailable
from tenure.runtime.running_stack import DEFAULT_ADDRESS, FoundGateway, find_gateway
from tenure.sdk.client import Client
from tenure.sdk.connection import GatewayConnection
from tenure.v1.admin_service_pb2 import GetCallerResponse

FOLDER = "/home/ann/shop/.tenure"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def gateway(**caller: Any) -> Any:
    """A client of a gateway that answers so."""
    return Mock(admin=Mock(GetCaller=AsyncMock(return_value=GetCallerResponse(**caller))))


def guessed(*, as_json: bool = False) -> Context:
    return Context("127.0.0.1:8470", None, as_json, Path(), Mock(), {}, is_guessed=True)


def person_answers(monkeypatch: pytest.MonkeyPatch, answer: bool) -> list[str]:
    """The questions to a person at a terminal, who gives this answer."""
    asked = list[str]()

    def confirm(question: str, **_: Any) -> bool:
        asked.append(question)
        return answer

    for stream in ("stdin", "stderr"):
        monkeypatch.setattr(sys, stream, Terminal())
    monkeypatch.setattr(click, "confirm", confirm)
    return asked


def test_a_gateway_without_an_address_is_guessed(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "tenant": None,
        "as_json": False,
        "is_verbose": False,
        "api_key_file": None,
        "tls_ca_file": None,
        "tls_certificate_file": None,
        "tls_key_file": None,
    }
    assert context_of({}, address=None, data=tmp_path, **options).is_guessed
    assert not context_of({}, address="127.0.0.1:8470", data=tmp_path, **options).is_guessed
    write_addresses(tmp_path, {"gateway": "127.0.0.1:1"})
    own = context_of({}, address=None, data=tmp_path, **options)
    assert (own.is_guessed, own.address) == (False, "127.0.0.1:1")


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
    await guessed().check(Mock(admin=Mock(GetCaller=AsyncMock(side_effect=Unavailable("no gateway")))))
    assert asked == []


def test_client_and_command_find_the_gateway_by_one_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack of the folder, or of the nearest folder above; a folder above of another user is left out."""
    for name in ("TENURE_ADDRESS", "TENURE_DATA"):
        monkeypatch.delenv(name, raising=False)
    inner = tmp_path / "shop" / "src"
    for number, folder in enumerate((tmp_path, tmp_path / "shop"), 1):
        (folder / ".tenure").mkdir(parents=True)
        write_addresses(folder / ".tenure", {"gateway": f"127.0.0.1:{number}"})
    inner.mkdir()
    monkeypatch.chdir(inner)
    connection = GatewayConnection(None, None, None, None)
    assert (connection.address, connection.is_guessed) == ("127.0.0.1:2", False)
    assert find_gateway() == FoundGateway("127.0.0.1:2")
    assert find_gateway(tmp_path / ".tenure").address == "127.0.0.1:1"
    monkeypatch.setattr(os, "getuid", lambda: -1)
    assert find_gateway() == FoundGateway(DEFAULT_ADDRESS, is_guessed=True)
    monkeypatch.setenv("TENURE_ADDRESS", "127.0.0.1:7")
    assert GatewayConnection(None, None, None, None).address == "127.0.0.1:7"


async def test_client_refuses_the_stack_of_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENURE_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    for caller, is_refused in ((gateway(stack_folder=FOLDER), True), (gateway(installation="prod"), False)):
        client = Client()
        monkeypatch.setattr(client._connection, "client", lambda caller=caller: caller)
        if is_refused:
            with pytest.raises(NotFound, match=FOLDER) as refused:
                await client.__aenter__()
            assert refused.value.reason == "STACK_OF_ANOTHER_FOLDER"
        else:
            await client.__aenter__()
