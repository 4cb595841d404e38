"""A name whose servers are silent delays no other name, and is not asked for again at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from ipaddress import ip_address

import pytest

from tenure.runtime.http import name_lookups
from tenure.runtime.http.name_lookups import NameLookups, Unresolved
from tests.support.dns_server import DnsServer, dns_server
from tests.support.patience import PATIENCE_SECONDS

SILENT_NAMES = 64
"""More than the threads of an event loop, and few enough for the socket of the DNS server to hold all their questions:
a question that the kernel drops would not be sent again.
"""


@asynccontextmanager
async def lookups(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[tuple[NameLookups, DnsServer]]:
    made = NameLookups()
    async with asyncio.timeout(PATIENCE_SECONDS), dns_server(monkeypatch, {"good.test": "127.0.0.7"}) as server:
        try:
            yield made, server
        finally:
            await made.close()


async def test_silent_names_delay_no_other_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_lookups, "LOOKUP_SECONDS", 3600.0)
    monkeypatch.setattr(name_lookups, "_TRY_SECONDS", 3600.0)
    async with lookups(monkeypatch) as (made, server):
        silent = [asyncio.ensure_future(made.addresses(f"w{number}.silent", 80)) for number in range(SILENT_NAMES)]
        await server.silent_was_asked.wait()
        assert await made.addresses("good.test", 80) == ["127.0.0.7"]
        assert not any(one.done() for one in silent)
        for one in silent:
            one.cancel()
        await asyncio.gather(*silent, return_exceptions=True)


async def test_lookup_of_a_silent_name_ends_in_time_for_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_lookups, "LOOKUP_SECONDS", 0.5)
    async with lookups(monkeypatch) as (made, server):
        cancelled = asyncio.ensure_future(made.addresses("w.silent", 80))
        waiting = [asyncio.ensure_future(made.addresses("w.silent", 80)) for _ in range(50)]
        await server.silent_was_asked.wait()
        cancelled.cancel()  # the others wait for the same look-up
        for one in waiting:
            with pytest.raises(
                Unresolved, match=r"w\.silent cannot be resolved: no name server answered within 0\.5 s"
            ):
                await one
        assert server.asked == {"w.silent": 1}


async def test_caller_with_less_time_does_not_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_lookups, "LOOKUP_SECONDS", 3600.0)
    async with lookups(monkeypatch) as (made, server):
        with pytest.raises(Unresolved, match=r"w\.silent was not resolved within 0\.1 s"):
            await made.ip_addresses("w.silent", 0.1)
        assert await made.ip_addresses("good.test", 60) == [ip_address("127.0.0.7")]
        assert server.asked == {"w.silent": 1, "good.test": 1}


@pytest.mark.parametrize(("kept_seconds", "times_asked"), [(3600.0, 1), (0.0, 2)])
async def test_failure_is_kept_for_a_while(
    monkeypatch: pytest.MonkeyPatch, kept_seconds: float, times_asked: int
) -> None:
    monkeypatch.setattr(name_lookups, "FAILURE_SECONDS", kept_seconds)
    monkeypatch.setattr(name_lookups, "MAX_FAILURES", 2)
    async with lookups(monkeypatch) as (made, server):
        for name in ("first.test", "none.test", "none.test", "a" * 300, "other.test"):
            with pytest.raises(Unresolved, match=f"the name {name} cannot be resolved: [A-Z]"):
                await made.addresses(name, 80)
        assert server.asked["none.test"] == times_asked
        with pytest.raises(Unresolved):
            await made.addresses("first.test", 80)
        assert server.asked["first.test"] == 2, "the oldest failure is forgotten"
