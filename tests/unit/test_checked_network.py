"""What is judged is what is dialled: one resolution, and nothing else is connected to."""

from __future__ import annotations

import asyncio
from typing import Any

import httpcore2
import pytest

from tenure.domain.outbound import Networks
from tenure.runtime.http import outbound_http
from tenure.runtime.http.name_lookups import Unresolved
from tenure.runtime.http.outbound_http import (
    AddressRefused,
    CheckedNetworkBackend,
    _share_seconds,
)
from tests.support.dialling import Dialler, answering
from tests.support.patience import PATIENCE_SECONDS


def backend(dialler: Any, answers: Any, allowed: Any = ()) -> Any:
    return CheckedNetworkBackend(Networks(allowed), "tests", resolve=answering(answers), dialer=dialler)


async def test_a_name_is_resolved_once_and_that_address_dialled() -> None:
    dialler = Dialler()
    answers = [["93.184.216.34"], ["127.0.0.1"]]
    await backend(dialler, answers).connect_tcp("rebinding.example", 80)
    assert dialler.dialled == [("93.184.216.34", 80)]
    assert answers == [["127.0.0.1"]]


async def test_only_the_public_ones_of_many_addresses_are_dialled() -> None:
    dialler = Dialler(failing={"93.184.216.34", "1.1.1.1"})
    answers = [["127.0.0.1", "93.184.216.34", "10.0.0.1", "::1", "1.1.1.1", "fe80::1%eth0"]]
    with pytest.raises(httpcore2.ConnectError):
        await backend(dialler, answers).connect_tcp("mixed.example", 80)
    assert [address for address, _ in dialler.dialled] == ["93.184.216.34", "1.1.1.1"]


async def test_name_with_private_addresses_is_refused_by_kind() -> None:
    dialler = Dialler()
    with pytest.raises(AddressRefused) as refused:
        await backend(dialler, [["169.254.169.254"]]).connect_tcp("metadata.example", 80)
    assert str(refused.value) == "tests may not reach metadata.example"  # strangers read it: no address
    assert refused.value.kind == "link-local"
    assert dialler.dialled == []


async def test_an_address_is_not_resolved() -> None:
    dialler = Dialler()
    with pytest.raises(AddressRefused):
        await backend(dialler, []).connect_tcp("::ffff:127.0.0.1", 80)
    await backend(dialler, [], ["127.0.0.0/8"]).connect_tcp("127.0.0.1", 80)
    assert dialler.dialled == [("127.0.0.1", 80)]


async def test_name_without_an_address_is_refused() -> None:
    with pytest.raises(Unresolved):
        await backend(Dialler(), [[]]).connect_tcp("empty.example", 80)
    with pytest.raises(AddressRefused):
        await backend(Dialler(), []).connect_unix_socket("/run/docker.sock")


class Silent(Dialler):
    """No host answers at the one address, as behind a firewall that drops."""

    async def connect_tcp(self, host: Any, port: Any, timeout: Any = None, *how: Any) -> Any:
        stream = await super().connect_tcp(host, port)
        if host == "2606:4700::1":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(timeout):
                    await asyncio.Event().wait()
            raise httpcore2.ConnectTimeout
        return stream


async def test_a_silent_address_leaves_time_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound_http, "ADDRESS_SECONDS", 0.1)
    dialler = Silent()
    async with asyncio.timeout(PATIENCE_SECONDS):
        await backend(dialler, [["2606:4700::1", "93.184.216.34"]]).connect_tcp("a.example", 80)
    assert [address for address, _ in dialler.dialled] == ["2606:4700::1", "93.184.216.34"]


async def test_the_time_for_a_connection_is_for_all_of_it() -> None:
    async def never(_host: str, _port: int) -> Any:
        await asyncio.Event().wait()

    checked = CheckedNetworkBackend(Networks(), "tests", resolve=never)
    async with asyncio.timeout(PATIENCE_SECONDS):
        with pytest.raises(httpcore2.ConnectTimeout):
            await checked.connect_tcp("a.example", 80, 0.1)
        with pytest.raises(httpcore2.ConnectTimeout):
            await backend(Silent(), [["2606:4700::1"]]).connect_tcp("a.example", 80, 0.1)


def test_an_address_gets_its_share_of_the_time() -> None:
    assert [_share_seconds(left, others) for left, others in ((None, 1), (60, 3), (3, 2), (-1, 1))] == [2, 2, 1, 0]
    assert [_share_seconds(left, 0) for left in (None, 7)] == [None, 7]
