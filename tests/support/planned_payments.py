"""A bank, and the calls by which models pay at it: planned once, planned again, and planned by other tasks.

`Bank` keeps what truly happened. `Payments` makes the jobs of one tenant's calls.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from services.tools.calls.effect_keys import effect_of_call
from services.tools.calls.executing import ExecuteJob
from services.tools.calls.records import CallKey, CallRequest
from services.tools.tool import CallContext, NothingDone, Tool, ToolAnswer, ToolFailure, ToolInDoubt, ToolWork, define
from tenure.domain.effect_keys import Effect, EffectKey, TaskScopes
from tenure.domain.fencing import TASK_PREFIX, Claims
from tenure.domain.in_doubt import Resolution
from tenure.domain.tools import CallSettlement, EffectClass


class Behaviour(StrEnum):
    """What the bank does with a request."""

    PAYS = "pays"
    PAYS_AND_LOSES = "pays and loses the answer"
    PAYS_LOSES_AND_REFUSES = "pays, loses the answer and refuses all repeats"
    PAYS_AND_HANGS = "pays and hangs, and answers a repeat"
    PAYS_AND_CRASHES = "pays and crashes"
    LOSES = "loses the request"
    REFUSES = "refuses"
    FAILS = "fails"
    UNREACHABLE = "is not reachable"


@dataclass
class Bank:
    """Payments by order and the key that came with them. `honours_keys`: it pays once for a key.

    `paid_once`: set after the first payment. `lets_go`: set it, and calls that hang are answered.
    """

    honours_keys: bool = True
    payments: Counter[str] = field(default_factory=Counter)
    requests: list[str] = field(default_factory=list)
    paid: set[str] = field(default_factory=set)
    paid_once: asyncio.Event = field(default_factory=asyncio.Event)
    lets_go: asyncio.Event = field(default_factory=asyncio.Event)

    async def pay(self, context: CallContext, arguments: dict[str, Any]) -> ToolAnswer:
        """Runs as the tool."""
        behaviour, order = Behaviour(arguments["bank"]), f"{context.tenant}/{arguments['order']}"
        if behaviour is Behaviour.UNREACHABLE:
            context.mark_not_sent()
            raise ToolFailure("the bank is not reachable")
        if behaviour is Behaviour.PAYS_LOSES_AND_REFUSES and context.sent_before:
            raise NothingDone("the card is declined.")
        self.requests.append(context.idempotency_key)
        await asyncio.sleep(0)
        if behaviour in {
            Behaviour.PAYS,
            Behaviour.PAYS_AND_LOSES,
            Behaviour.PAYS_LOSES_AND_REFUSES,
            Behaviour.PAYS_AND_HANGS,
            Behaviour.PAYS_AND_CRASHES,
        }:
            if not self.honours_keys or context.idempotency_key not in self.paid:
                self.payments[order] += 1
            self.paid.add(context.idempotency_key)
            self.paid_once.set()
        match behaviour:
            case Behaviour.PAYS_AND_LOSES | Behaviour.PAYS_LOSES_AND_REFUSES | Behaviour.LOSES:
                raise ToolInDoubt("the bank was asked, and the connection broke")
            case Behaviour.PAYS_AND_HANGS if not context.sent_before:
                await self.lets_go.wait()
            case Behaviour.PAYS_AND_CRASHES:
                raise RuntimeError
            case Behaviour.REFUSES if context.idempotency_key not in self.paid:
                raise NothingDone("the card is declined.")
            case Behaviour.FAILS:
                raise ToolFailure("the bank has an error")
        return ToolAnswer(f"paid under {context.idempotency_key}")


@dataclass(frozen=True)
class Payer:
    """A task that pays."""

    task_id: uuid.UUID
    scopes: TaskScopes

    @classmethod
    def root(cls, conversation: str = "", source: str = "") -> Payer:
        task_id = uuid.uuid4()
        return cls(task_id, TaskScopes(str(task_id), conversation, source))

    def relative(self) -> Payer:
        """A sub-agent or a fork of it."""
        return Payer(uuid.uuid4(), self.scopes)


@dataclass
class Payments:
    """Makes the calls of one tenant's tool."""

    bank: Bank
    key: EffectKey | None
    effect_class: EffectClass = EffectClass.KEYED
    tenant: str = field(default_factory=lambda: f"tenant-{uuid.uuid4().hex}")
    timeout_seconds: float = 0.0
    settle_seconds: float = 0.0

    def job(
        self,
        payer: Payer,
        call_id: str,
        order: object,
        behaviour: Behaviour = Behaviour.PAYS,
        *,
        epoch: int = 10,
        resolution: Resolution | None = None,
        undoes: str = "",
    ) -> ExecuteJob:
        claims = Claims(
            f"{TASK_PREFIX}{payer.task_id}", self.tenant, epoch, f"claim-{epoch}", "worker", scopes=payer.scopes
        )
        definition = define("pay", self.effect_class, "pays", {})
        definition = replace(definition, effect_key=self.key, settlement=CallSettlement(self.settle_seconds))
        arguments = {"order": order, "bank": behaviour.value}
        effect = effect_of_call(definition, claims, arguments, undoes)
        assert effect is None or isinstance(effect, Effect)
        request = CallRequest(
            CallKey(payer.task_id, call_id),
            claims,
            "pay",
            self.effect_class,
            json.dumps(arguments).encode(),
            timeout_seconds=self.timeout_seconds,
            resolution=resolution,
            undoes=undoes,
            effect=effect,
            patience_seconds=60.0,
        )
        return ExecuteJob(request, ToolWork(Tool(definition, self.bank.pay), arguments))

    def paid(self, order: object) -> int:
        """How often the order was paid."""
        return self.bank.payments[f"{self.tenant}/{order}"]
