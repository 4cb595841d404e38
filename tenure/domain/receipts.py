"""Receipts: signed records of effects, and the hash chain over those of a task. docs/receipts.md has the format.

A line of a receipts file is one JSON object in canonical form: {"key_id": …, "receipt": {…}, "signature": …}, or
with "head" instead of "receipt". The signature covers `signed_bytes` of the inner object. The record of the tool
service in a receipt contains the link of the receipt before it; the SHA-256 of the record is the receipt's own link.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from tenure.domain.audit import Head
from tenure.domain.tools import EffectClass, OutcomeStatus

VERSION: Final = 1
NO_LINK: Final = bytes(32)
"""The link before the first receipt."""
SIGNED_PREFIX: Final = b"\0tenure receipt\0"
"""Comes before the signed JSON. A fencing token, which the same keys sign, never begins with a zero byte."""
MAX_LINE_CHARACTERS: Final = 100_000
_MOST_INTEGER: Final = 2**53 - 1


def canonical(value: Any) -> str:
    """Returns JSON in the one form that is signed: sorted keys, no spaces, and escapes only where JSON needs them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def utc_text(moment: datetime | None) -> str:
    """Returns a time as receipts have it, `2026-01-31T12:00:00.000000Z`; "" for None."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def outcome_hash(status: OutcomeStatus, detail: str, content: str) -> bytes:
    """Returns the hash that tool.proto defines. Only the last of its three parts, the content, may contain a NUL."""
    return sha256(f"{status}\0{detail}\0{content}".encode()).digest()


@dataclass(frozen=True, slots=True)
class EffectRecord:
    """A call record of an effect, as the tool service has it, with its place in the chain.

    `link`: as it was stored with the outcome. `outcome_message_hash`: of the stored message. `outcome_hash`: of status,
    detail and content, as tool.proto defines it.
    """

    task_id: str
    tenant: str
    call_id: str
    tool: str
    effect_class: EffectClass
    arguments_hash: bytes
    call_attempt: int
    epoch: int
    claim_id: str
    accepted_at: datetime
    started_at: datetime | None
    finished_at: datetime
    outcome_message_hash: bytes
    number: int
    link: bytes
    outcome_status: OutcomeStatus
    outcome_detail: str
    outcome_hash: bytes
    idempotency_key: str = ""

    def chained(self, previous: bytes) -> dict[str, Any]:
        """Returns the part of the record that its link covers; `receipt_text` in SQL writes the same."""
        return {
            "accept_time": utc_text(self.accepted_at),
            "arguments_sha256": self.arguments_hash.hex(),
            "call": self.call_id,
            "call_attempt": self.call_attempt,
            "claim": self.claim_id,
            "effect_class": self.effect_class.value,
            "epoch": str(self.epoch),
            "finish_time": utc_text(self.finished_at),
            "number": self.number,
            "outcome_message_sha256": self.outcome_message_hash.hex(),
            "previous": previous.hex(),
            "start_time": utc_text(self.started_at),
            "task": self.task_id,
            "tenant": self.tenant,
            "tool": self.tool,
            "v": VERSION,
        }


def link_of(chained: Mapping[str, Any]) -> bytes:
    """Returns the link of a receipt: the SHA-256 of the canonical form of its record."""
    return sha256(canonical(chained).encode()).digest()


class BrokenReceiptsError(ValueError):
    """A chain or a file of receipts was changed, or is not complete. `place`: a call id, or the number of a line."""

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(problem)
        self.place = place


def chain_of(records: Iterable[EffectRecord], head: Head) -> list[dict[str, Any]]:
    """Returns the chained parts of a task's records, by number, computed anew. Raises BrokenReceiptsError.

    `head`: the head that was read before the records. The chain may have grown since, but must still have it.
    """
    chain: list[dict[str, Any]] = []
    link = NO_LINK
    for record in sorted(records, key=lambda record: record.number):
        if record.number != len(chain) + 1:
            raise BrokenReceiptsError(record.call_id, f"receipt {len(chain) + 1} of task {record.task_id} is missing")
        chain.append(record.chained(link))
        link = link_of(chain[-1])
        if link != record.link:
            problem = f"the record of call {record.call_id} of task {record.task_id} is not the one of its receipt"
            raise BrokenReceiptsError(record.call_id, f"{problem}: it was changed, or a receipt before it was")
        if record.number == head.number and link != head.hash:
            raise BrokenReceiptsError(record.call_id, f"receipt {record.number} is not the head that the fence has")
    if len(chain) < head.number:
        raise BrokenReceiptsError("", f"the receipts end with number {len(chain)}, but there were {head.number}")
    return chain


# A file of receipts, as a bank or an auditor verifies it.


@dataclass(frozen=True, slots=True)
class VerifiedReceipts:
    """What a file of receipts proves. `head`: None for a single receipt, which shows nothing about the others.

    `open_calls`: effects that had begun without an outcome when the head was signed.
    """

    installation: str
    tenant: str
    task_id: str
    receipts: tuple[Mapping[str, Any], ...]
    head: Head | None
    signed_at: str
    open_calls: tuple[str, ...] = ()


CheckSignature = Callable[[str, bytes, bytes], None]
"""Raises ValueError unless the key of this id made this signature (second) of these bytes (third)."""


def signed_bytes(signed: Mapping[str, Any]) -> bytes:
    """Returns the bytes that the signature of a receipt or a head covers."""
    return SIGNED_PREFIX + canonical(signed).encode()


def signed_line(kind: str, signed: Mapping[str, Any], key_id: str, signature: bytes) -> str:
    """Returns the line of a receipt (kind "receipt") or a head (kind "head")."""
    return canonical({kind: signed, "key_id": key_id, "signature": signature.hex()})


def verify_receipts(lines: Sequence[str], check: CheckSignature, noted: Head | None = None) -> VerifiedReceipts:
    """Verifies a file of receipts without any service. Raises BrokenReceiptsError.

    All lines belong to one task of one installation. The receipts are 1, 2, 3 … without gap, and the last line is their
    head; or the file is one receipt alone. `noted`: an earlier head of the task, which the chain must still have.
    """
    if not lines:
        raise BrokenReceiptsError("1", "the file is empty")
    read = [_read_line(number, line, check) for number, line in enumerate(lines, 1)]
    kinds = [kind for kind, _ in read]
    if kinds == ["receipt"] and noted is None:
        return _single(read[0][1])
    if kinds != ["receipt"] * (len(read) - 1) + ["head"]:
        raise BrokenReceiptsError(str(len(read)), "the last line, and no other, must be the head: receipts are missing")
    return _whole([signed for _, signed in read], noted)


def _read_line(number: int, line: str, check: CheckSignature) -> tuple[str, dict[str, Any]]:
    try:
        return _read_signed(line, check)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenReceiptsError(str(number), f"line {number} is not a signed receipt: {error}") from error


def _read_signed(line: str, check: CheckSignature) -> tuple[str, dict[str, Any]]:
    envelope = _read_json(line)
    (kind,) = envelope.keys() - {"key_id", "signature"}
    signed, key_id, signature = envelope[kind], envelope["key_id"], bytes.fromhex(envelope["signature"])
    if signed_line(kind, signed, key_id, signature) != line:
        raise ValueError("its signature has another spelling")
    check(key_id, signature, signed_bytes(signed))
    if kind not in {"receipt", "head"} or signed["type"] != kind:
        raise ValueError("it is neither a receipt nor a head")
    if signed["v"] != VERSION:
        raise ValueError(f"it has version {signed['v']}; this program reads version {VERSION}")
    return kind, signed


def _read_json(line: str) -> dict[str, Any]:
    """Reads one object. Only the canonical form is accepted, so that no two readers can read it differently."""
    if len(line) > MAX_LINE_CHARACTERS:
        raise ValueError(f"it has more than {MAX_LINE_CHARACTERS} characters")
    value = json.loads(line, parse_float=_refuse, parse_constant=_refuse, parse_int=_integer)
    if not isinstance(value, dict) or canonical(value) != line:
        raise ValueError("it is not a JSON object in canonical form")
    return value


def _refuse(text: str) -> Any:
    raise ValueError(f"{text} is not an integer")


def _integer(text: str) -> int:
    if len(text) > len(str(_MOST_INTEGER)) or abs(int(text)) > _MOST_INTEGER:
        raise ValueError(f"{text} is too large")
    return int(text)


def _single(receipt: Mapping[str, Any]) -> VerifiedReceipts:
    record = receipt["tool_service"]["record"]
    _check_ledger(1, receipt)
    return VerifiedReceipts(
        receipt["installation"], record["tenant"], record["task"], (receipt,), None, receipt["sign_time"]
    )


def _whole(signed: Sequence[Mapping[str, Any]], noted: Head | None) -> VerifiedReceipts:
    *receipts, head = signed
    link = NO_LINK
    for number, receipt in enumerate(receipts, 1):
        record = receipt["tool_service"]["record"]
        if (receipt["installation"], record["tenant"], record["task"]) != _subject(head):
            raise BrokenReceiptsError(str(number), f"line {number} belongs to another task than the head")
        if (record["number"], record["previous"]) != (number, link.hex()):
            raise BrokenReceiptsError(str(number), f"line {number} does not follow from the line before it")
        _check_ledger(number, receipt)
        link = link_of(record)
        if noted is not None and noted.number == number and noted.hash != link:
            raise BrokenReceiptsError(str(number), f"receipt {number} has another link than the one that was noted")
    if (head["receipts"], head["link"]) != (len(receipts), link.hex()):
        raise BrokenReceiptsError(str(len(signed)), f"the head is that of {head['receipts']} other receipts")
    if noted is not None and noted.number > len(receipts):
        raise BrokenReceiptsError(
            str(len(signed)), f"there are {len(receipts)} receipts, but {noted.number} were noted"
        )
    whole = Head(len(receipts), link)
    return VerifiedReceipts(*_subject(head), tuple(receipts), whole, head["sign_time"], tuple(head["open_calls"]))


def _subject(head: Mapping[str, Any]) -> tuple[str, str, str]:
    return head["installation"], head["tenant"], head["task"]


def _check_ledger(number: int, receipt: Mapping[str, Any]) -> None:
    """Checks that the two stores agree about the outcome.

    A ledger that has a doubt, or a person's resolution of one, did not know the outcome.
    """
    recorded, ledger = receipt["tool_service"]["outcome"], receipt["ledger"]
    committed = ledger.get("outcome")
    if committed is None or committed["status"] == OutcomeStatus.IN_DOUBT or "resolution" in ledger:
        return
    differs = committed["sha256"] != recorded["sha256"] and not committed["truncated"]
    if differs or committed["status"] != recorded["status"]:
        call, status = receipt["tool_service"]["record"]["call"], committed["status"]
        problem = f"the ledger says {status} of call {call}, but the tool service has another outcome"
        raise BrokenReceiptsError(str(number), f"line {number}: {problem}")
