"""The pages of answer links alone: what a person sees when the ledger fails."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest

from services.gateway.answer_links import AnswerPages
from tenure.domain.approvals import make_link_token
from tenure.domain.errors import InvalidRequest
from tenure.runtime.rpc_status import PeerFailed
from tenure.v1 import approval_service_pb2 as pb
from tenure.validators import validate

TOKEN = make_link_token(bytes(12), bytes(32))


async def test_a_bug_of_the_ledger_has_a_page_of_its_own() -> None:
    failing = AsyncMock(side_effect=PeerFailed(grpc.StatusCode.INTERNAL, "a secret of the ledger"))
    peers: Any = Mock(approvals=Mock(GetAnswerLink=failing, AnswerByLink=failing))
    pages = AnswerPages(peers)
    for page in (await pages.show(TOKEN, "h"), await pages.answer(TOKEN, "h", {"decision": "allow"})):
        assert (page.status, page.code) == (503, "UNAVAILABLE")
        assert page.headers["cache-control"] == "no-store"
        assert "secret" not in page.body
        assert TOKEN not in page.body


@pytest.mark.parametrize("shown", ["", "0" * 63, "0" * 65, "é" * 64, "\0" * 64, "G" * 64])
def test_a_digest_that_no_page_shows_is_refused(shown: str) -> None:
    """The ledger compares it in constant time, and writes it into the audit log: neither takes every text."""
    request = pb.AnswerByLinkRequest(
        link_id="a" * 12, digest=bytes(32), decision="allow", shown_digest=shown, request_id="r"
    )
    with pytest.raises(InvalidRequest, match="shown_digest"):
        validate(request)
    request.shown_digest = "0123456789abcdef" * 4
    validate(request)


async def test_the_addresses_of_one_network_have_one_rate() -> None:
    """One customer has 2^64 of them by IPv6; a few would use up the rate of all."""
    pages = AnswerPages(Mock())
    seen = [await pages.show("no token", f"2001:db8::{number:x}") for number in range(1, 30)]
    assert [page.status for page in seen[-5:]] == [429] * 5
    others = [await pages.show("no token", address) for address in ("2001:db8:0:1::1", "198.51.100.1", "unknown")]
    assert [page.status for page in others] == [404] * 3
