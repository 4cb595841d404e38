"""The pages of answer links alone: what a person sees when the ledger fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any
from unittest.mock import AsyncMock, Mock

import grpc
import pytest

from edges.answer_links import pages as answer_links
from edges.answer_links.pages import AnswerPages, field_of
from tenure.domain.approvals import make_link_token
from tenure.domain.errors import InvalidRequest, NotFound
from tenure.runtime.rpc.status import PeerFailed
from tenure.v1 import approval_service_pb2 as pb
from tenure.v1 import task_pb2
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


def tokens() -> Iterator[str]:
    """Tokens of links that the ledger does not have."""
    for number in count():
        yield f"tal_{number + 1:012d}_{'b' * 43}"


def ledger_with(*known: str) -> AnswerPages:
    """Pages before a ledger that has these links."""
    ids = {token.split("_")[1] for token in known}

    async def found(request: pb.GetAnswerLinkRequest) -> pb.GetAnswerLinkResponse:
        if request.link_id not in ids:
            raise NotFound("there is no such link", reason="ANSWER_LINK_NOT_FOUND")
        return pb.GetAnswerLinkResponse()

    return AnswerPages(Mock(approvals=Mock(GetAnswerLink=found)))


async def until_refused(pages: AnswerPages, address: str, guesses: Iterator[str]) -> int:
    """Guesses until the rate is used up. Returns the number of guesses that cost a query."""
    for number, guess in enumerate(guesses):
        if (await pages.show(guess, address)).status == 429:
            return number
    raise AssertionError("there is always a further guess")


async def test_guesses_from_the_same_address_do_not_block_a_known_link(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a proxy that is not trusted all people have one address."""
    monkeypatch.setattr(answer_links, "monotonic", lambda: 100.0)
    pages, guesses = ledger_with(TOKEN), tokens()
    assert [(await pages.show(next(guesses), "h")).status for _ in range(100)] == [404] * 100
    assert (await pages.show(TOKEN, "h")).status == 200  # twice as many guesses a second do not block a first look
    await until_refused(pages, "h", guesses)
    assert [(await pages.show(TOKEN, "h")).status for _ in range(9)] == [200] * 9
    assert [(await pages.show(TOKEN, "h")).status for _ in range(2)] == [200, 429]  # a link has a rate, too


async def test_guesses_from_one_address_leave_others_their_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_links, "monotonic", lambda: 100.0)
    pages, guesses = ledger_with(TOKEN), tokens()
    assert await until_refused(pages, "2001:db8::1", guesses) <= 2 * answer_links.GUESSES_OF_ALL + 10
    assert (await pages.show(TOKEN, "2001:db8::2")).status == 429  # the network of 64 bits that one customer has
    for address in ("2001:db8:0:1::1", "198.51.100.1", "unknown"):
        assert (await pages.show(next(guesses), address)).status == 404


async def test_a_malformed_token_costs_no_query() -> None:
    pages = ledger_with(TOKEN)
    assert [(await pages.show("no token", "h")).status for _ in range(1000)] == [404] * 1000
    assert (await pages.show(TOKEN, "h")).status == 200


async def test_page_decides_each_of_several_calls() -> None:
    calls = [
        task_pb2.WaitingCall(call_id=f"3.{index}", tool=tool, arguments_json=json.dumps({"cents": index}))
        for index, tool in enumerate(("pay", "<mail>"))
    ]
    wait = task_pb2.Wait(wait_id="w1", kind=task_pb2.WAIT_KIND_TOOL_APPROVAL, call_id="3.0", tool="pay", calls=calls)
    shown = pb.GetAnswerLinkResponse(task=task_pb2.Task(wait=wait), decisions=["allow", "deny"], shown_digest="d")
    given = AsyncMock(return_value=pb.AnswerByLinkResponse())
    peers: Any = Mock(approvals=Mock(GetAnswerLink=AsyncMock(return_value=shown), AnswerByLink=given))
    pages = AnswerPages(peers)
    page = (await pages.show(TOKEN, "h")).body
    assert ("<h3>pay (3.0)</h3>" in page, "<h3>&lt;mail&gt; (3.1)</h3>" in page) == (True, True)
    assert page.count(f'name="{field_of("3.1")}"') == 2
    assert "required" not in page, "a person may decide on some of the calls"
    await pages.answer(TOKEN, "h", {field_of("3.0"): "allow", field_of("3.1"): "deny", "shown": "d"})
    (request,) = given.call_args.args
    assert [(call.call_id, call.decision) for call in request.calls] == [("3.0", "allow"), ("3.1", "deny")]
    assert request.WhichOneof("answer") is None
