"""Page tokens that are garbage, truncated, of another list or of another tenant: refused with a type, or a position.

A token is only a position. So a token of another list or tenant may be taken for one, if it has the form of the list's
own tokens; it never shows another tenant's rows.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, Final

import pytest

from tenure.v1.tenant_service_pb2 import USAGE_GROUPING_MODEL
from tests.fuzz import page_tokens
from tests.fuzz.calling import FUZZED, Answer, Code, call
from tests.fuzz.lists import LISTS, Rows, fill, is_of_one_tenant, requests_to
from tests.fuzz.methods import Method
from tests.fuzz.world import World
from tests.support.examples import examples

pytestmark = [pytest.mark.server, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(900), pytest.mark.fuzz]

OTHERS: Final = "theirs"
"""The other tenant, and the mark of its rows."""
AT_ONCE: Final = 8
WITH_PAGES: Final = frozenset(
    {
        *("ListTasks", "ListAging", "ListAgingTasks", "ListSchedules", "ListWebhooks", "ListWebhookDeliveries"),
        *("ListAgents", "ListApiKeys", "ListAuditRecords", "ListTenants", "ListLeases"),
    }
)
"""The lists that have several pages here. A bill, a file or a call in doubt takes a worker."""


async def test_a_hostile_page_token_is_a_typed_refusal_or_a_position(world: World) -> None:
    own, others = await fill(world, FUZZED, "own"), await fill(world, OTHERS, OTHERS)
    tokens = {*await _tokens(world, own), *await _tokens(world, others)}
    cut = {token[:length] for token in tokens for length in (len(token) // 2, len(token) - 1)} - {""}
    positions = sorted({*tokens, *cut, *page_tokens.POSITIONS} - {*page_tokens.GARBAGE})
    hostile = [*_some(positions, examples(16)), *_some(page_tokens.GARBAGE, examples(4))]  # of each kind some
    problems = [problem async for problem in _problems(world, own, hostile)]
    assert not problems, f"{len(problems)} answers:\n" + "\n".join(problems[:20])
    world.check_processes()


def _some(tokens: Sequence[str], count: int) -> list[str]:
    """The same in each run."""
    return random.Random(examples(1)).sample(tokens, min(len(tokens), count))


async def _problems(world: World, rows: Rows, tokens: list[str]) -> AsyncIterator[str]:
    """Sends each token to each list, and yields what is wrong with the answers."""
    at_once = asyncio.Semaphore(AT_ONCE)

    async def send(method: Method, request: Any, token: str) -> str:
        sent = type(request)(page_token=token)
        sent.MergeFrom(request)
        async with at_once:
            answer = await call(world.bare[method.process], method, [sent])
        return _problem_of(method, sent, answer)

    for method in LISTS:
        for request in requests_to(method, rows):
            for problem in await asyncio.gather(*(send(method, request, token) for token in tokens)):
                if problem:
                    yield problem


async def _tokens(world: World, rows: Rows) -> set[str]:
    """The tokens of the second pages. Each of them works."""
    tokens, listed = set[str](), set[str]()
    for method in LISTS:
        for request in requests_to(method, rows):
            first = await _page(world, rows.tenant, method, request)
            if first.next_page_token:
                tokens.add(first.next_page_token)
                listed.add(method.descriptor.name)
                request.page_token = first.next_page_token
                second = await _page(world, rows.tenant, method, request)
                assert second.SerializeToString(deterministic=True) != first.SerializeToString(deterministic=True)
    assert listed >= WITH_PAGES, WITH_PAGES - listed
    return tokens


async def _page(world: World, tenant: str, method: Method, request: Any) -> Any:
    answer = await call(world.bare[method.process], method, [request], tenant=tenant)
    assert answer.code is Code.OK, f"{method}: {answer}"
    return answer.messages[0]


def _problem_of(method: Method, sent: Any, answer: Answer) -> str:
    text = f"{method}: {answer.code.name} {answer.text[:200]} for {str(sent)[:300]!r}"
    if answer.code is Code.INVALID_ARGUMENT:
        return "" if answer.reason and "page_token" in answer.text else text
    if answer.code is not Code.OK:
        return text
    is_garbage = sent.page_token in page_tokens.GARBAGE and getattr(sent, "group_by", 0) != USAGE_GROUPING_MODEL
    shows_others = is_of_one_tenant(method) and f"{OTHERS}-".encode() in answer.messages[0].SerializeToString()
    return text if is_garbage or shows_others else ""
