"""The pages of answer links alone: what a person sees when the ledger fails."""

from __future__ import annotations

from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc

from services.gateway.answer_links import AnswerPages
from tenure.domain.approvals import make_link_token
from tenure.runtime.rpc_status import PeerFailed

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
