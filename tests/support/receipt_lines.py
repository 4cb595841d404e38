"""Receipts of a chain, signed as a coordinator signs them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tenure.domain.receipts import (
    NO_LINK,
    VERSION,
    EffectRecord,
    link_of,
    outcome_hash,
    signed_bytes,
    signed_line,
)
from tenure.domain.tools import EffectClass, OutcomeStatus
from tenure.runtime.security.signing import Signer

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
TASK = "0190a1b2-0000-7000-8000-000000000001"
CONTENT = outcome_hash(OutcomeStatus.SUCCEEDED, "", "done")
SIGN_TIME = "2026-02-01T00:00:00.000000Z"


def records(count: int = 4, task_id: str = TASK) -> list[EffectRecord]:
    """Call records with their links, as the tool service stores them."""
    made: list[EffectRecord] = []
    link = NO_LINK
    for number in range(1, count + 1):
        record = EffectRecord(
            task_id=task_id,
            tenant="acme",
            call_id=f"{number}.0",
            tool='pay "ü"\u2028',
            effect_class=EffectClass.UNSAFE,
            arguments_hash=bytes([number] * 32),
            call_attempt=1,
            epoch=2**62 + number,
            claim_id="claim",
            accepted_at=START,
            started_at=START,
            finished_at=START + timedelta(seconds=number),
            outcome_message_hash=bytes([number + 100] * 32),
            number=number,
            link=b"",
            outcome_status=OutcomeStatus.SUCCEEDED,
            outcome_detail="",
            outcome_hash=CONTENT,
        )
        link = link_of(record.chained(link))
        made.append(replace(record, link=link))
    return made


def receipt_line(signer: Signer, chained: dict[str, Any], **changed: Any) -> str:
    outcome = {"detail": "", "sha256": CONTENT.hex(), "status": "SUCCEEDED"}
    ledger = {"approval": {"actor": "user/ann"}, "outcome": {**outcome, "truncated": False}}
    signed = {
        "v": VERSION,
        "type": "receipt",
        "installation": "bank",
        "ledger": ledger,
        "sign_time": SIGN_TIME,
        "tool_service": {"record": chained, "outcome": outcome, "idempotency_key": f"{TASK}/{chained['call']}"},
        **changed,
    }
    return line_of(signer, "receipt", signed)


def head_line(signer: Signer, chain: list[dict[str, Any]], **changed: Any) -> str:
    link = link_of(chain[-1]) if chain else NO_LINK
    signed = {
        "v": VERSION,
        "type": "head",
        "installation": "bank",
        "tenant": "acme",
        "task": TASK,
        "receipts": len(chain),
        "link": link.hex(),
        "open_calls": ["9.0"],
        "sign_time": SIGN_TIME,
        **changed,
    }
    return line_of(signer, "head", signed)


def line_of(signer: Signer, kind: str, signed: dict[str, Any]) -> str:
    return signed_line(kind, signed, signer.key_id, signer.sign(signed_bytes(signed)).signature)
