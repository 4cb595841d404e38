"""ListEffects: lists a tenant's calls with an effect key, in pages: what touched an order, for example."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, Final

from services.tools.calls.effect_keys import fact_of_record
from services.tools.calls.in_doubt import page_token, read_page_token
from services.tools.statements import QUERIES
from tenure.domain.effect_keys import EffectScope, canonical_json
from tenure.domain.repeated_effects import EffectFact
from tenure.domain.tool_arguments import MAX_JSON_DEPTH, is_deeper, strict_json
from tenure.domain.tools import CallState
from tenure.runtime.store.postgres import Pool, pool_connection
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import tool_pb2
from tenure.wire.common import CALL_STATES, EFFECT_FACTS, EFFECT_SCOPES, OUTCOME_STATUSES, timestamp

DEFAULT_PAGE: Final = 50


async def list_effects(pool: Pool, tenant: str, request: admin_pb.ListEffectsRequest) -> admin_pb.ListEffectsResponse:
    """Returns one page, the first accepted call first. Raises InvalidRequest.

    The query asks for one row more than the page has, to learn whether there is a next page.
    """
    after, task_id, call_id = read_page_token(request.page_token)
    page_size = request.page_size or DEFAULT_PAGE
    parameters = {
        "tenant": tenant,
        "tool": request.tool,
        "keys": list(keys_to_find(request.key)),
        "after": after,
        "after_task_id": task_id,
        "after_call_id": call_id,
        "limit": page_size + 1,
    }
    async with pool_connection(pool) as postgres:
        rows = await (await postgres.execute(QUERIES.list_effects, parameters)).fetchall()
    calls = [_effect_call(row) for row in rows[:page_size]]
    token = _token_after(rows[page_size - 1]) if len(rows) > page_size else ""
    return admin_pb.ListEffectsResponse(effects=calls, next_page_token=token)


def keys_to_find(key: Mapping[str, str]) -> Iterator[str]:
    """Yields the JSON objects that an effect may have, for each reading of the values: as text and as JSON."""
    pointers = [name if name.startswith("/") else f"/{name.replace('~', '~0').replace('/', '~1')}" for name in key]
    if not pointers:
        return
    for values in product(*(_readings(value) for value in key.values())):
        yield canonical_json(dict(zip(pointers, values, strict=True)))


def _readings(text: str) -> list[Any]:
    """Returns the values that a text may mean. No argument of a call nests so deep as MAX_JSON_DEPTH."""
    try:
        value = strict_json(text)
    except (ValueError, RecursionError):
        return [text]
    return [text] if is_deeper(text, value, MAX_JSON_DEPTH - 1) else [text, value]


def _effect_call(row: tuple[Any, ...]) -> tool_pb2.EffectCall:
    tool, key, scope, task_id, call_id, state, packed, begun_before, attempt, epoch, idempotency_key, *rest = row
    accepted_at, started_at, finished_at, has_key, kept_fact = rest
    call = tool_pb2.EffectCall(
        tool=tool,
        key_json=json.dumps(json.loads(key)),
        scope=EFFECT_SCOPES.to_wire(EffectScope(scope)),
        task_id=str(task_id),
        call_id=call_id,
        call_attempt=attempt,
        epoch=epoch,
        idempotency_key=idempotency_key,
        accept_time=timestamp(accepted_at),
        start_time=None if started_at is None else timestamp(started_at),
        finish_time=None if finished_at is None else timestamp(finished_at),
        has_key=has_key,
    )
    if state is None:
        call.fact = EFFECT_FACTS.to_wire(EffectFact(kept_fact))
        return call
    fact, outcome, _ = fact_of_record(state, packed, begun_before, accepted_at)
    call.state = CALL_STATES.to_wire(CallState(state))
    if outcome is not None:
        call.status, call.detail = OUTCOME_STATUSES.to_wire(outcome.status), outcome.detail
    # A call that did nothing has the outcome of another one, or says that it was not made.
    made_nothing = not idempotency_key
    call.fact = EFFECT_FACTS.to_wire(EffectFact.NONE if made_nothing else fact)
    return call


def _token_after(row: tuple[Any, ...]) -> str:
    return page_token(row[11], row[3], row[4])
