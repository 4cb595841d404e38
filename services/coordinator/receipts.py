"""Signs the receipts of effects: composes each from the tool service's record and the ledger's entries, read here.

The coordinator has the key, and writes neither store; who writes a store cannot sign. docs/receipts.md has the reasons.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

from services.coordinator.claims.issuing import Issuer
from services.coordinator.ledger_client import LedgerClient
from services.coordinator.tools_client import ToolsClient
from tenure.domain.audit import Head
from tenure.domain.errors import NotFound, WrongState
from tenure.domain.receipts import (
    NO_LINK,
    BrokenReceiptsError,
    EffectRecord,
    chain_of,
    link_of,
    outcome_hash,
    utc_text,
)
from tenure.domain.tools import CallState, EffectClass
from tenure.domain.waits import leaves_call_open
from tenure.runtime.request_context import current_tenant
from tenure.v1 import ledger_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as pb
from tenure.wire.common import CALL_STATES, EFFECT_CLASSES, OUTCOME_STATUSES, WAIT_ANSWERS, WAIT_KINDS, moment

DEFAULT_RECEIPTS: Final = 200
CHAIN_BROKEN: Final = "RECEIPT_CHAIN_BROKEN"
NO_RECEIPT: Final = "NO_RECEIPT"
_KINDS: Final = ("tool_intent", "tool_outcome", "wait_resolution", "operator_request")


class Receipts:
    """Reads both stores as the tenant of the request."""

    def __init__(self, ledger: LedgerClient, tools: ToolsClient, issuer: Issuer) -> None:
        self._ledger, self._tools, self._issuer = ledger, tools, issuer

    async def page(self, request: pb.GetReceiptsRequest) -> pb.GetReceiptsResponse:
        """Returns signed receipts, and after the last one the signed head.

        Raises NotFound, and WrongState (RECEIPT_CHAIN_BROKEN) if a record is not the one that its receipt was made of.
        """
        task_id = str(UUID(request.task_id))
        fence, trails = await self._tools.calls(task_id)
        facts = await self._ledger_facts(task_id)  # the later read: an approval is older than its call's record
        # Of later outcomes, a page of records may have one and lack the one before: they wait for the next request.
        known = [trail for trail in trails if 0 < trail.receipt_number <= fence.receipts]
        records = {trail.record.call_id: _record(task_id, trail) for trail in known}
        chain = _checked(records.values(), Head(fence.receipts, fence.receipt_head or NO_LINK))
        wanted = [one for one in chain if one["number"] > request.after_number and request.call_id in ("", one["call"])]
        if request.call_id and not wanted:
            raise _no_receipt(request, trails)
        page = wanted[: request.page_size or DEFAULT_RECEIPTS]
        more = len(page) < len(wanted)
        plans = {trail.record.call_id: trail.plan_id for trail in known if trail.plan_id}
        for call in plans.keys() & {one["call"] for one in page}:
            facts[call]["approval"] = await self._approval_of_plan(plans[call])
        return pb.GetReceiptsResponse(
            receipts=[self._receipt(one, records[one["call"]], facts[one["call"]]) for one in page],
            head="" if more or request.call_id else self._head(task_id, chain, _open_calls(trails, fence.receipts)),
            more=more,
        )

    def _receipt(self, chained: Mapping[str, Any], record: EffectRecord, facts: Mapping[str, Any]) -> str:
        outcome = {
            "detail": record.outcome_detail,
            "sha256": record.outcome_hash.hex(),
            "status": record.outcome_status.value,
        }
        of_tools = {"record": chained, "outcome": outcome, "idempotency_key": record.idempotency_key}
        signed = {"tool_service": of_tools, "ledger": facts, "sign_time": utc_text(datetime.now(UTC))}
        return self._issuer.sign_receipt("receipt", signed)

    def _head(self, task_id: str, chain: list[dict[str, Any]], open_calls: list[str]) -> str:
        signed = {
            "tenant": current_tenant(),
            "task": task_id,
            "receipts": len(chain),
            "link": (link_of(chain[-1]) if chain else NO_LINK).hex(),
            "open_calls": open_calls,
            "sign_time": utc_text(datetime.now(UTC)),
        }
        return self._issuer.sign_receipt("head", signed)

    async def _approval_of_plan(self, plan_id: str) -> dict[str, Any]:
        """Returns who approved a plan. Its answer may be in the ledger of another task of the tree, or be pruned."""
        task_id = plan_id.partition("/")[0]
        with suppress(NotFound):
            async for entry in self._ledger.entries(task_id, ("wait_resolution",)):
                if entry.body.wait_resolution.plan.plan_id == plan_id:
                    return _approval(entry) | {"plan": plan_id}
        return {"plan": plan_id}

    async def _ledger_facts(self, task_id: str) -> Mapping[str, dict[str, Any]]:
        """Returns by call what the ledger says: the intent, who approved it, who resolved a doubt, and the outcome."""
        facts: defaultdict[str, dict[str, Any]] = defaultdict(dict)
        async for entry in self._ledger.entries(task_id, _KINDS):
            body = entry.body
            match body.WhichOneof("body"):
                case "tool_intent":
                    facts[body.tool_intent.call_id]["intent"] = _entry(entry)
                case "wait_resolution" if _approves(body.wait_resolution):
                    facts[body.wait_resolution.call_id]["approval"] = _approval(entry)
                case "operator_request" if body.operator_request.HasField("resolve_call"):
                    facts[body.operator_request.resolve_call.call_id]["resolution"] = _resolution(entry)
                case "tool_outcome":
                    facts[body.tool_outcome.call_id]["outcome"] = _outcome(entry)
        return facts


def _checked(records: Iterable[EffectRecord], head: Head) -> list[dict[str, Any]]:
    try:
        return chain_of(records, head)
    except BrokenReceiptsError as broken:
        message = f"no receipt is signed: {broken}; compare the tool service's database with a backup"
        raise WrongState(message, reason=CHAIN_BROKEN, metadata={"call_id": broken.place}) from broken


def _no_receipt(request: pb.GetReceiptsRequest, trails: Iterable[tool_pb2.CallTrail]) -> NotFound:
    """Says why the call has none."""
    for trail in trails:
        if trail.record.call_id == request.call_id:
            state = CALL_STATES.to_domain(trail.record.state)
            is_pure = EFFECT_CLASSES.to_domain(trail.record.effect_class) is EffectClass.PURE
            why = "its tool has no effect (PURE)" if is_pure else f"it is {state}, and only an outcome has a receipt"
            break
    else:
        why = "the task has no record of such a call"
    return NotFound(f"call {request.call_id} has no receipt: {why}", reason=NO_RECEIPT)


def _record(task_id: str, trail: tool_pb2.CallTrail) -> EffectRecord:
    record = trail.record
    return EffectRecord(
        task_id=task_id,
        tenant=current_tenant(),
        call_id=record.call_id,
        tool=record.tool,
        effect_class=EFFECT_CLASSES.to_domain(record.effect_class),
        arguments_hash=trail.arguments_hash,
        call_attempt=record.call_attempt,
        epoch=record.epoch,
        claim_id=trail.claim_id,
        accepted_at=moment(trail.accept_time),
        started_at=moment(record.start_time) if record.HasField("start_time") else None,
        finished_at=moment(trail.finish_time),
        outcome_message_hash=trail.outcome_message_hash,
        number=trail.receipt_number,
        link=trail.receipt_link,
        outcome_status=OUTCOME_STATUSES.to_domain(record.outcome.status),
        outcome_detail=record.outcome.detail,
        outcome_hash=trail.outcome_hash,
        idempotency_key=(trail.idempotency_key or f"{task_id}/{record.call_id}")
        if record.HasField("start_time")
        else "",
    )


def _open_calls(trails: Iterable[tool_pb2.CallTrail], receipts: int) -> list[str]:
    """Returns the effects that had begun and had no receipt yet when there were so many."""
    return sorted(trail.record.call_id for trail in trails if trail.receipt_number > receipts or _is_open_effect(trail))


def _is_open_effect(trail: tool_pb2.CallTrail) -> bool:
    """Whether the call may have had its effect, and has no outcome. An earlier attempt of an ACCEPTED one may have."""
    if EFFECT_CLASSES.to_domain(trail.record.effect_class) is EffectClass.PURE:
        return False
    match CALL_STATES.to_domain(trail.record.state):
        case CallState.STARTED | CallState.IN_DOUBT:
            return True
        case CallState.ACCEPTED:
            return trail.begun_before
        case _:
            return False


def _entry(entry: ledger_pb2.Entry) -> dict[str, Any]:
    return {"sequence": entry.sequence, "time": utc_text(moment(entry.record_time))}


def _approves(resolution: ledger_pb2.WaitResolution) -> bool:
    kind, answer = WAIT_KINDS.to_domain(resolution.wait_kind), WAIT_ANSWERS.to_domain(resolution.answer_kind)
    return leaves_call_open(kind, answer, resolution.answer)


def _approval(entry: ledger_pb2.Entry) -> dict[str, Any]:
    answer = entry.body.wait_resolution
    return {
        **_entry(entry),
        "actor": entry.actor,
        "addressee": answer.addressee,
        "answer": answer.answer,
        "shown_sha256": answer.shown_digest,
        "wait": answer.wait_id,
    }


def _resolution(entry: ledger_pb2.Entry) -> dict[str, Any]:
    act = entry.body.operator_request.resolve_call
    decision = (act.decision.WhichOneof("decision") or "").upper()
    return {**_entry(entry), "actor": entry.actor, "call_attempt": act.call_attempt, "decision": decision}


def _outcome(entry: ledger_pb2.Entry) -> dict[str, Any]:
    outcome = entry.body.tool_outcome.outcome
    status = OUTCOME_STATUSES.to_domain(outcome.status)
    return {
        **_entry(entry),
        "sha256": outcome_hash(status, outcome.detail, outcome.content).hex(),
        "status": status.value,
        "truncated": outcome.truncated,
    }
