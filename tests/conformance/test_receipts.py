"""Receipts on the real stores: the chain under concurrency, doubts and resolutions, and what the signer refuses."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from services.coordinator.claims.issuing import Issuer
from services.coordinator.ledger_client import LedgerClient
from services.coordinator.receipts import Receipts
from services.coordinator.tools_client import ToolsClient
from tenure.domain.audit import Head
from tenure.domain.errors import NotFound
from tenure.domain.receipts import VerifiedReceipts, verify_receipts
from tenure.runtime.rpc.client import open_channel
from tenure.runtime.security.signing import SignedBytes, Verifier
from tenure.v1 import task_service_pb2 as api
from tests.support.fix_checkpoint import MakeCheckpoint
from tests.support.fix_tools import Grants, StartTools, ToolReplica

pytestmark = pytest.mark.server
UNSAFE = "append_record_unsafe"
ODD = 'ä"\\/\n\u2028\x7f😀'


class Signing:
    """A coordinator's part, over a ledger and a tool service of a test."""

    def __init__(self, receipts: Receipts, verifying_keys: Path) -> None:
        self.receipts, self._verifier = receipts, Verifier(verifying_keys)

    async def lines(self, task_id: str, **options: Any) -> list[str]:
        """All pages of a task's receipts, with the head."""
        lines, more, after = list[str](), True, 0
        while more:
            request = api.GetReceiptsRequest(task_id=task_id, after_number=after, **options)
            page = await self.receipts.page(request)
            lines += [*page.receipts, *filter(None, [page.head])]
            more, after = page.more, after + len(page.receipts)
        return lines

    def verify(self, lines: list[str], noted: Head | None = None) -> VerifiedReceipts:
        return verify_receipts(lines, self._check, noted)

    def _check(self, key_id: str, signature: bytes, signed: bytes) -> None:
        self._verifier.check(SignedBytes(signed, key_id, signature))


@pytest.fixture
async def signing(checkpoint: MakeCheckpoint, grants: Grants) -> Any:
    """Begins with a tool service; `task()` makes a task of the ledger."""
    async with AsyncExitStack() as stack:
        replica = await checkpoint()

        async def begin(tools: ToolReplica) -> Signing:
            ledger = await stack.enter_async_context(open_channel(replica.address))
            service = await stack.enter_async_context(open_channel(tools.address))
            issuer = Issuer(grants.verifying_keys_file.with_name("signing.json"), grants.verifying_keys_file)
            signing = Signing(Receipts(LedgerClient(ledger), ToolsClient(service), issuer), grants.verifying_keys_file)
            return signing

        begin.task = replica.create  # type: ignore[attr-defined]
        yield begin


async def test_each_effect_has_a_receipt_in_the_order_of_outcomes(
    tool_service: StartTools, grants: Grants, signing: Any
) -> None:
    tools = await tool_service()
    one = await signing(tools)
    owner = grants.claim((await signing.task()).task_id)
    await tools.outcome(owner, "1.0", "append_record", file="a", line=ODD)
    await tools.outcome(owner, "1.1", "list_files")
    await tools.outcome(owner, "1.2", UNSAFE, file="a", line="y")
    whole = one.verify(await one.lines(owner.task_id, page_size=1))
    assert [receipt["tool_service"]["record"]["call"] for receipt in whole.receipts] == ["1.0", "1.2"]
    assert (whole.task_id, whole.tenant, whole.head.number, whole.open_calls) == (owner.task_id, "default", 2, ())
    (alone,) = await one.lines(owner.task_id, call_id="1.2")
    assert one.verify([alone]).receipts[0]["tool_service"] == whole.receipts[1]["tool_service"]
    with pytest.raises(NotFound, match="no effect"):
        await one.lines(owner.task_id, call_id="1.1")
