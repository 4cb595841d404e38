"""A story of one task in all its sources, told step by step: what the checker's tests bend.

story = Story(); story.submit(); story.claim("worker-1"); story.attempt(1); story.answer(1, "append_record") …
history = story.history()
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any

from checker import history as seen
from checker.checks.budgets import raise_of
from checker.reading import arguments_hash, outcome_hash
from tenure.domain import entries as facts
from tenure.domain.budget import Budget, TokenUsage
from tenure.domain.fold import fold
from tenure.domain.states import Reason, TaskState
from tenure.domain.task import AgentSpec, Limits, TaskSpec
from tenure.domain.tools import CallState, EffectClass, Outcome, OutcomeStatus, call_id

TASK = "018f0000-0000-7000-8000-000000000001"
CLIENT = "client-1"
CAP = 10_000
CLASSES = {"append_record": EffectClass.KEYED, "append_record_unsafe": EffectClass.UNSAFE, "search": EffectClass.PURE}
ANSWER_USAGE = TokenUsage(100, 20)
LOST_USAGE = TokenUsage(100, 7)


@dataclass
class Story:
    """Every method tells one thing that happened, to all sources that see it. One second passes with each entry."""

    task_id: str = TASK
    tenant: str = "default"
    request_id: str = "request-1"
    entries: list[seen.LedgerEntry] = field(default_factory=list)
    grants: list[seen.Grant] = field(default_factory=list)
    refusals: list[seen.RefusalRecord] = field(default_factory=list)
    calls: dict[str, seen.CallRecord] = field(default_factory=dict)
    effects: list[seen.ObservedEffect] = field(default_factory=list)
    model_calls: list[seen.BilledModelCall] = field(default_factory=list)
    bills: list[seen.Bill] = field(default_factory=list)
    operations: list[seen.Operation] = field(default_factory=list)
    fence: seen.ToolFenceRecord | None = None
    state: TaskState = TaskState.QUEUED
    step: int = 0
    task_attempt: int = 1
    now: float = 1_700_000_000.0
    revision: int = 10

    @property
    def holder(self) -> seen.Grant:
        return self.grants[-1]

    def entry(self, body: facts.Body, *, owned: bool = True, actor: str = "", step: int | None = None) -> None:
        self.now += 1.0
        claim = self.holder if owned else None
        self.entries.append(
            seen.LedgerEntry(
                task_id=self.task_id,
                sequence=len(self.entries) + 1,
                body=body,
                step=self.step if step is None else step,
                epoch=claim.epoch if claim else 0,
                claim_id=claim.claim_id if claim else "",
                attempt=self.task_attempt,
                actor=actor or (claim.holder if claim else "checkpoint"),
                recorded_at=self.now,
                body_hash=hash_of(body),
            )
        )

    def submit(self, **agent: Any) -> None:
        spec = TaskSpec(goal="do it", agent=AgentSpec(**agent), limits=Limits(max_tokens=CAP))
        self.entry(facts.Submitted(spec, self.request_id), owned=False)
        self.entry(facts.Transition(TaskState.QUEUED, Reason.SUBMITTED), owned=False)
        self.operation(seen.Method.SUBMIT, request_id=self.request_id, request_hash=b"payload")

    def operation(self, method: seen.Method, **fields: Any) -> None:
        moment = float(len(self.operations))
        values = {"client": CLIENT, "tenant": self.tenant, "task_id": self.task_id, "answer": seen.OperationResult.OK}
        times = {"invoked_monotonic": moment, "returned_monotonic": moment + 0.5}
        self.operations.append(seen.Operation(method=method, **{**values, **times, **fields}))

    def claim(self, worker: str = "worker-1") -> None:
        """A claim is made, registered and opened."""
        self.revision += 5
        claim_id = f"claim-{self.revision}"
        self.grants.append(
            seen.Grant(
                task_id=self.task_id,
                claim_id=claim_id,
                generation=1,
                created_revision=self.revision,
                last_revision=self.revision,
                session_id=f"session-of-{worker}",
                holder=worker,
            )
        )
        self.move(TaskState.RUNNING, Reason.OPENED)

    def lose(self, reason: str = Reason.LEASE_EXPIRED) -> None:
        """The claim is gone, and the ledger puts the task back."""
        self.release()
        self.move(TaskState.QUEUED, reason, owned=False)

    def release(self) -> None:
        self.revision += 1
        self.grants[-1] = replace(self.holder, deleted_revision=self.revision)

    def move(self, to_state: TaskState, reason: str, *, owned: bool = True, result: str = "") -> None:
        origin = self.state if len(self.entries) > 1 else None
        self.entry(facts.Transition(to_state, reason, result=result, from_state=origin), owned=owned)
        self.state = to_state

    def attempt(self, step: int, number: int = 1, *, outlives: bool = False) -> None:
        self.step = step
        self.entry(facts.ModelAttempt(number, "model", 100, 50, 150, outlives_worker=outlives))

    def lose_attempt(self, number: int = 1) -> None:
        """The model was called, and its answer was lost."""
        self.model_calls.append(
            seen.BilledModelCall(
                task_id=self.task_id,
                step=self.step,
                attempt_number=number,
                request_id=f"lost-{self.step}-{number}",
                usage=LOST_USAGE,
                answered=False,
            )
        )
        self.bill(number, LOST_USAGE, lost=True)
        self.entry(facts.AttemptLost(number, LOST_USAGE), owned=False)

    def bill(self, number: int, usage: TokenUsage, **fields: Any) -> None:
        whose = {"task_id": self.task_id, "root_task_id": self.task_id}
        self.bills.append(seen.Bill(step=self.step, attempt_number=number, usage=usage, **{**whose, **fields}))

    def answer(self, *tools: str, number: int = 1) -> None:
        """The model answers with these calls, and the intents are committed with it."""
        request_id = f"req-{self.step}-{number}"
        uses = [{"type": "tool_use", "id": f"use-{self.step}-{n}", "name": t, "input": {}} for n, t in enumerate(tools)]
        content: tuple[dict[str, Any], ...] = ({"type": "text", "text": f"Step {self.step}."}, *uses)
        self.model_calls.append(
            seen.BilledModelCall(
                task_id=self.task_id,
                step=self.step,
                attempt_number=number,
                request_id=request_id,
                usage=ANSWER_USAGE,
            )
        )
        self.bill(number, ANSWER_USAGE, provider_request_id=request_id)
        reason = "tool_use" if tools else "end_turn"
        self.entry(
            facts.AssistantMessage(number, content, reason, ANSWER_USAGE, "model", request_id),
        )
        for index, tool in enumerate(tools):
            arguments = json.dumps({"line": index})
            self.entry(facts.ToolIntent(call_id(self.step, index), f"use-{self.step}-{index}", tool, arguments))

    def execute(self, index: int = 0, status: OutcomeStatus = OutcomeStatus.SUCCEEDED) -> Outcome:
        """A call of this step runs at the tools, under the holder's fence."""
        self.now += 1.0
        name = call_id(self.step, index)
        intent = next(e.body for e in self.entries if isinstance(e.body, facts.ToolIntent) and e.body.call_id == name)
        if self.fence is None or self.fence.epoch < self.holder.epoch:
            self.raise_fence()
        outcome = Outcome(status, f"{name} is done")
        self.calls[name] = seen.CallRecord(
            task_id=self.task_id,
            call_id=name,
            tool=intent.tool,
            effect_class=CLASSES[intent.tool],
            state=CallState.FINISHED,
            epoch=self.holder.epoch,
            claim_id=self.holder.claim_id,
            runner_id="runner-1",
            arguments_hash=arguments_hash(intent.tool, intent.arguments_json),
            outcome=outcome,
            outcome_hash=outcome_hash(outcome),
            accepted_at=self.now,
            started_at=self.now + 0.1,
            finished_at=self.now + 0.2,
        )
        if intent.tool.startswith("append_record"):
            place = f"records.jsonl:{len(self.effects) + 1}"
            self.effects.append(
                seen.ObservedEffect(task_id=self.task_id, call_id=name, epoch=self.holder.epoch, place=place)
            )
        return outcome

    def raise_fence(self, *, close: bool = False) -> None:
        self.fence = seen.ToolFenceRecord(
            task_id=self.task_id,
            epoch=self.holder.epoch,
            claim_id=self.holder.claim_id,
            closed=close,
            changed_at=self.now,
        )

    def settle(self, index: int, outcome: Outcome) -> None:
        self.entry(facts.ToolOutcome(call_id(self.step, index), outcome))

    def refuse(self, stale: seen.Grant, guard: seen.Guard = seen.Guard.LEDGER, method: str = "Commit") -> None:
        """A stale claim comes back."""
        self.now += 1.0
        current = self.fence.epoch if guard is seen.Guard.TOOLS and self.fence else self.holder.epoch
        self.refusals.append(
            seen.RefusalRecord(
                guard=guard,
                task_id=self.task_id,
                method=method,
                presented_epoch=stale.epoch,
                current_epoch=current,
                holder=stale.holder,
                refused_at=self.now,
            )
        )

    def end(self, state: TaskState = TaskState.SUCCEEDED, reason: str = Reason.FINAL_ANSWER) -> None:
        self.move(state, reason, result="It is done." if state is TaskState.SUCCEEDED else "Step 1.")
        self.release()

    def requeue(self, extra_tokens: int = 0) -> None:
        """An operator lets the ended task go on."""
        self._begin_again(facts.Requeue(extra_tokens), Reason.OPERATOR_REQUEUE)

    def grant(self, extra_tokens: int) -> None:
        """The same, of a task that ended for want of budget."""
        self._begin_again(facts.GrantBudget(extra_tokens), Reason.BUDGET_GRANTED)

    def _begin_again(self, act: facts.Requeue | facts.GrantBudget, reason: str) -> None:
        self.task_attempt += 1
        self.entry(facts.OperatorRequest("once more", act), owned=False, actor="olga")
        self.move(TaskState.QUEUED, reason, owned=False)

    def row(self) -> seen.TaskSnapshot:
        usage = sum((bill.usage for bill in self.bills), start=TokenUsage())
        opened = [e for e in self.entries if e.epoch]
        ends = [e.body for e in self.entries if isinstance(e.body, facts.Transition)]
        return seen.TaskSnapshot(
            task_id=self.task_id,
            tenant=self.tenant,
            state=self.state,
            sequence=len(self.entries),
            step=self.step,
            attempt=self.task_attempt,
            epoch=opened[-1].epoch if opened else 0,
            claim_count=len(self.grants),
            usage=usage,
            result=ends[-1].result,
            root_task_id=self.task_id,
            granted=self.holder.fence if self.grants else None,
        )

    def budget(self) -> seen.BudgetSnapshot:
        point = fold(facts.Entry(e.sequence, e.step, e.body) for e in self.entries if e.body is not None)
        reserved = point.open_attempt.reserved_tokens if point.open_attempt else 0
        used = sum(bill.usage.total for bill in self.bills)
        goals = (entry.body for entry in self.entries if isinstance(entry.body, facts.Submitted))
        cap = sum(goal.spec.limits.max_tokens for goal in goals)
        cap += sum(raise_of(entry.body).tokens for entry in self.entries)
        return seen.BudgetSnapshot(root_task_id=self.task_id, budget=Budget(cap, used, reserved))

    def streams(self) -> tuple[seen.Subscription, ...]:
        """One from the beginning to the end, one that went on in the middle."""
        delivereds = [seen.Delivered(e.sequence, e.body_hash, e.recorded_at - OFFSET + 0.1) for e in self.entries]
        whole = seen.Subscription(client=CLIENT, task_id=self.task_id, delivered=tuple(delivereds), ended=True)
        rest = seen.Subscription(
            client="client-2", task_id=self.task_id, after_sequence=3, delivered=tuple(delivereds[3:]), ended=True
        )
        return (whole, rest)

    def history(self) -> seen.History:
        return seen.History(
            tasks=(self.row(),),
            entries=tuple(self.entries),
            budgets=(self.budget(),),
            bills=tuple(self.bills),
            grants=tuple(self.grants),
            generations=(seen.GenerationChange(revision=1, generation=1),),
            refusals=tuple(self.refusals),
            fences=(self.fence,) if self.fence else (),
            calls=tuple(self.calls.values()),
            effects=tuple(self.effects),
            model_calls=tuple(self.model_calls),
            operations=tuple(self.operations),
            subscriptions=self.streams(),
            stops=(),
            bounds=(),
            settled=True,
            healthy=True,
            unix_minus_monotonic_seconds=OFFSET,
        )


OFFSET = 1_699_999_000.0


def hash_of(body: facts.Body) -> bytes:
    return hashlib.sha256(repr(body).encode()).digest()


def taken_over() -> Story:
    """Two steps under one claim, the third lost with its worker and asked again by the next, which ends the task."""
    story = Story()
    story.submit()
    story.claim("worker-1")
    story.attempt(1)
    story.answer("append_record", "append_record_unsafe")
    for index in range(2):
        story.settle(index, story.execute(index))
    story.attempt(2)
    story.lose_attempt()
    stale = story.holder
    story.lose()
    story.claim("worker-2")
    story.refuse(stale)
    story.attempt(2, 2)
    story.answer("search", number=2)
    story.settle(0, story.execute(0))
    story.refuse(stale, seen.Guard.TOOLS, "Execute")
    story.attempt(3)
    story.answer()
    story.operation(seen.Method.GET, sequence=len(story.entries), state=TaskState.RUNNING, seen_tenant="default")
    story.end()
    story.operation(
        seen.Method.GET,
        sequence=len(story.entries),
        state=TaskState.SUCCEEDED,
        result="It is done.",
        seen_tenant="default",
        invoked_monotonic=story.now - OFFSET + 5.0,
        returned_monotonic=story.now - OFFSET + 6.0,
    )
    return story


def call_joined() -> Story:
    """The first owner is lost in the middle of a call of a model runner, and the second one joins it."""
    story = Story()
    story.submit()
    story.claim("worker-1")
    story.attempt(1, outlives=True)
    story.lose()
    story.claim("worker-2")
    story.answer()
    story.end()
    return story


def cancelled() -> Story:
    """Cancelled while a call runs: a coordinator claims, closes the tools' fence and ends it."""
    story = Story()
    story.submit()
    story.claim("worker-1")
    story.attempt(1)
    story.answer("append_record_unsafe")
    outcome = story.execute(0)
    story.entry(facts.CancelRequest("enough"), owned=False, actor=CLIENT)
    story.operation(seen.Method.CANCEL)
    stale = story.holder
    story.release()
    story.move(TaskState.QUEUED, Reason.CLAIM_LOST, owned=False)
    story.claim("coordinator/c-1")
    story.raise_fence(close=True)
    story.settle(0, outcome)
    story.end(TaskState.CANCELLED, Reason.CANCEL_REQUESTED)
    story.refuse(stale)
    story.refuse(stale, seen.Guard.TOOLS, "Execute")
    return story


def requeued() -> Story:
    """Cancelled, and requeued by an operator; the next attempt succeeds."""
    story = cancelled()
    story.operation(
        seen.Method.GET,
        sequence=len(story.entries),
        state=TaskState.CANCELLED,
        result="Step 1.",
        seen_tenant="default",
        invoked_monotonic=story.now - OFFSET + 0.2,
        returned_monotonic=story.now - OFFSET + 0.3,
    )
    story.requeue(extra_tokens=100)
    story.claim("worker-2")
    story.attempt(2)
    story.answer("search")
    story.settle(0, story.execute(0))
    story.attempt(3)
    story.answer()
    story.end()
    return story


def cancelled_again() -> Story:
    """Requeued after a cancel; the next attempt is cancelled as well, and again after a close-out that came between."""
    story = cancelled()
    story.requeue()
    out = facts.OperatorCloseOut(TaskState.FAILED)
    for request in (
        facts.CancelRequest("enough again"),
        facts.OperatorRequest("as failed", out),
        facts.CancelRequest("as cancelled"),
    ):
        story.entry(request, owned=False, actor=CLIENT)
    story.operation(seen.Method.CANCEL)
    story.move(TaskState.CANCELLED, Reason.CANCEL_REQUESTED, owned=False)
    return story


def granted() -> Story:
    """Ended at its cap, which an operator raised; the next attempt succeeds."""
    story = Story()
    story.submit()
    story.claim("worker-1")
    story.attempt(1)
    story.answer("search")
    story.settle(0, story.execute(0))
    story.end(TaskState.COST_EXCEEDED, Reason.TOKEN_LIMIT)
    story.grant(extra_tokens=100)
    story.claim("worker-2")
    story.attempt(2)
    story.answer()
    story.end()
    return story
