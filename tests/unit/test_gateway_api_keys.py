"""API keys at a gateway that many unknown keys are sent to: which reads of the ledger wait."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from services.gateway import api_keys
from services.gateway.api_keys import MAX_LOOK_UPS, ApiKeys
from tenure.domain.access import make_api_key, read_api_key
from tenure.domain.errors import LimitReached, NotFound, Unauthenticated
from tenure.runtime.rpc import call_limiter
from tenure.v1 import api_key_service_pb2 as pb
from tests.support.patience import PATIENCE_SECONDS

ATTACKER, OTHER = "ipv4:192.0.2.1", "ipv4:192.0.2.2"


def key(number: int) -> str:
    """The key with a number below 36 * 36, whose two digits are in its id."""
    return make_api_key(bytes(divmod(number, 36)).rjust(12, b"\0"), bytes(32))


class Ledger:
    """Has the keys of `known`. Answers for the others only when `answers` is set."""

    def __init__(self, *known: str) -> None:
        texts = [read_api_key(one) for one in known]
        self.known = {text.key_id: text.digest for text in texts if text is not None}
        self.answers = asyncio.Event()
        self.reads: Counter[bool] = Counter()  # by whether the key exists; those that wait, for unknown keys

    async def LookUpApiKey(self, request: pb.LookUpApiKeyRequest) -> pb.LookUpApiKeyResponse:
        self.reads[request.key_id in self.known] += 1
        if request.key_id in self.known:
            found = pb.ApiKey(key_id=request.key_id, tenant="acme")
            return pb.LookUpApiKeyResponse(api_key=found, digest=self.known[request.key_id], valid=True)
        try:
            await self.answers.wait()
        finally:
            self.reads[False] -= 1
        raise NotFound("there is no such key")


def gateway(ledger: Ledger) -> ApiKeys:
    peers: Any = SimpleNamespace(api_keys=ledger)
    return ApiKeys(peers)


async def quiet() -> None:
    """Returns when every call waits for a read or for its turn."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_unknown_keys_hold_few_reads_and_delay_no_known_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_keys, "FRESH_SECONDS", 0.0)  # each call of a known key reads it again
    ledger = Ledger(key(1), key(2))
    keys = gateway(ledger)
    await keys.authenticate(key(1), OTHER)
    async with asyncio.timeout(PATIENCE_SECONDS):
        attack = [asyncio.create_task(keys.authenticate(key(n), ATTACKER)) for n in range(100, 400)]
        await quiet()
        assert ledger.reads[False] == MAX_LOOK_UPS // 2
        for first_seen in (False, True):  # also a key that this gateway has not seen, from another address
            principal = await keys.authenticate(key(1 + first_seen), OTHER)
            assert principal.tenant == "acme"
        ledger.answers.set()
        assert {type(end) for end in await asyncio.gather(*attack, return_exceptions=True)} == {Unauthenticated}


async def test_unknown_keys_beyond_the_waiting_ones_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_limiter, "MAX_WAITING", 4)
    ledger = Ledger()
    keys = gateway(ledger)
    attack = [asyncio.create_task(keys.authenticate(key(n), ATTACKER)) for n in range(MAX_LOOK_UPS)]
    await quiet()
    ledger.answers.set()
    ends = Counter(type(end) for end in await asyncio.gather(*attack, return_exceptions=True))
    assert ends == {Unauthenticated: MAX_LOOK_UPS // 2 + 2, LimitReached: 2}
