"""The duty that has the tools forget pruned tasks: a refusal holds up no other, and is not said to be done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from services.coordinator import pruned_tasks
from services.coordinator.claims.issuing import Issuer
from services.coordinator.pruned_tasks import PrunedTasks
from tenure.domain.errors import StaleEpoch, Unavailable
from tenure.domain.fencing import Audience, Claims
from tenure.runtime.request_context import current_tenant
from tenure.runtime.rpc.status import PeerFailed
from tenure.runtime.security.signing import Verifier, write_key_pair
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import token_pb2
from tenure.wire.token import TokenChecker
from tests.support.patience import PATIENCE_SECONDS

REFUSALS: dict[str, Exception] = {
    "runs": Unavailable("a call of this task still runs", reason="CALL_STILL_RUNS"),
    "stale": StaleEpoch(presented=7, current=8),
    "older": PeerFailed(grpc.StatusCode.UNIMPLEMENTED, "Forget"),
}


class Ledger:
    """Offers each pruning once, fails now and then, and remembers its requests."""

    def __init__(self, *task_ids: str) -> None:
        self.left, self.forgotten, self.failures = list(task_ids), set[str](), 2
        self.done = asyncio.Event()

    async def list_prunings(self, limit: int) -> list[pb.ListPruningsResponse.Pruning]:
        if self.failures:
            self.failures -= 1
            raise PeerFailed(grpc.StatusCode.UNIMPLEMENTED, "ListPrunings")
        entry, self.left = self.left[:limit], self.left[limit:]
        return [pb.ListPruningsResponse.Pruning(task_id=one, tenant="acme", epoch=7, claim_id="c") for one in entry]

    async def note_forgotten(self, task_ids: Sequence[str]) -> None:
        self.forgotten |= set(task_ids)
        if not self.left:
            self.done.set()


class Tools:
    """Forgets what it is asked to, or refuses by the task's name."""

    def __init__(self, tokens: TokenChecker) -> None:
        self._tokens = tokens
        self.shown: list[Claims] = []

    async def forget(self, token: token_pb2.FencingToken) -> None:
        claims = self._tokens.check(token)
        assert claims.tenant == current_tenant()
        self.shown.append(claims)
        if error := REFUSALS.get(claims.task_id.partition("-")[0]):
            raise error


async def test_a_refused_pruning_is_not_noted_and_blocks_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruned_tasks, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(pruned_tasks, "_FAILED_PAUSE_SECONDS", 0.01)
    write_key_pair(tmp_path / "signing.json", tmp_path / "verifying.json", "k")
    issuer = Issuer(tmp_path / "signing.json", tmp_path / "verifying.json")
    good = [f"good-{number}" for number in range(40)]
    ledger, tools = Ledger(*REFUSALS, *good), Tools(TokenChecker(Verifier(tmp_path / "verifying.json"), Audience.TOOLS))
    duty = asyncio.create_task(PrunedTasks(cast("Any", ledger), cast("Any", tools), issuer, "coordinator-1").run())
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await ledger.done.wait()
        assert not duty.done()
    finally:
        duty.cancel()
        await asyncio.gather(duty, return_exceptions=True)
    assert ledger.forgotten == set(good)
    assert {(one.epoch, one.claim_id, one.holder) for one in tools.shown} == {(7, "c", "coordinator-1")}
