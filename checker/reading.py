"""How checks read a ledger, and how they speak of what they found there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Final, TypeVar

from checker.history import LedgerEntry, TaskHistory
from tenure.domain.budget import MOST_NANO_USD
from tenure.domain.entries import (
    Body,
    Forked,
    GrantBudget,
    OperatorRequest,
    Requeue,
    Submitted,
    ToolIntent,
    ToolOutcome,
    Transition,
    WaitResolution,
)
from tenure.domain.fencing import Fence, describe_epoch
from tenure.domain.states import TERMINAL, WAITING, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS
from tenure.domain.task import DEFAULT_LOOP
from tenure.domain.tools import Outcome
from tenure.domain.waits import leaves_call_open

if TYPE_CHECKING:
    from tenure.domain.budget import Prices, TokenUsage


# Tokens and money together, and what a call costs: counted here again, apart from the ledger's own arithmetic.


@dataclass(frozen=True, slots=True)
class Amount:
    """So many tokens, and so much money in nano dollars: as text, 120 (5000 n$)."""

    tokens: int = 0
    nano_usd: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.nano_usd + other.nano_usd)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.nano_usd - other.nano_usd)

    @property
    def above_nothing(self) -> Amount:
        """Each of both, or nothing where it is below."""
        return Amount(max(0, self.tokens), max(0, self.nano_usd))

    def __str__(self) -> str:
        return f"{self.tokens}" + (f" ({self.nano_usd} n$)" if self.nano_usd else "")


NOTHING: Final = Amount()


def charge(prices: Prices | None, usage: TokenUsage) -> int:
    """What a call costs in nano dollars: by the highest tier that its input is beyond, rounded up, bounded."""
    if prices is None:
        return 0
    input_tokens = usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    rates = prices.tiers[0].rates
    for tier in prices.tiers:
        rates = tier.rates if input_tokens > tier.above_input_tokens else rates
    parts = (
        (usage.input_tokens, rates.input),
        (usage.output_tokens, rates.output),
        (usage.cache_creation_input_tokens, rates.cache_creation_input),
        (usage.cache_read_input_tokens, rates.cache_read_input),
    )
    return min(MOST_NANO_USD, ceil(sum((Fraction(tokens * rate, 10**6) for tokens, rate in parts), Fraction())))


# Hashes by which a call in the ledger is compared with its record at the tools.


def arguments_hash(tool: str, arguments_json: str) -> bytes:
    """Of the tool and the exact bytes of its arguments, as the tool service makes it."""
    named = tool.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return hashlib.sha256(named.encode() + b"\0" + arguments_json.encode()).digest()


def outcome_hash(outcome: Outcome) -> bytes:
    """Of what the model reads of it: its status, detail and content."""
    return hashlib.sha256(f"{outcome.status}\0{outcome.detail}\0{outcome.content}".encode()).digest()


B = TypeVar("B")

FORK_HEAD: Final = 2
"""The entry that says that a task is a fork, and how many after it were copied."""

TIME_GRAIN_SECONDS: Final = 0.001
"""Times of one database are compared to this: they went through floats."""


def of_kind(entries: Iterable[LedgerEntry], kind: type[B]) -> Iterator[tuple[LedgerEntry, B]]:
    """The entries of one kind, with their bodies."""
    for entry in entries:
        if isinstance(entry.body, kind):
            yield entry, entry.body


def own(entries: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """A task's entries, in order, without those that a fork copied: they were made, run and billed in another task."""
    all_of_them = tuple(entries)
    second = all_of_them[FORK_HEAD - 1].body if len(all_of_them) >= FORK_HEAD else None
    if not isinstance(second, Forked):
        return all_of_them
    return all_of_them[:FORK_HEAD] + all_of_them[FORK_HEAD + second.copied_entries :]


def opens(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """The entries by which claims took the task over."""
    return (entry for entry, move in of_kind(entries, Transition) if move.to_state is TaskState.RUNNING)


def ends(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """The entries by which the task ended; there should be one of each attempt."""
    return (entry for entry, move in of_kind(entries, Transition) if move.to_state in TERMINAL)


def requeues(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """The entries by which operators asked for the next attempt; a grant does if it had ended for want of it."""
    state: TaskState | None = None
    for entry in entries:
        match entry.body:
            case Transition(to_state=to_state):
                state = to_state
            case OperatorRequest(act=Requeue()):
                yield entry
            case OperatorRequest(act=GrantBudget()) if state is TaskState.COST_EXCEEDED:
                yield entry
            case _:
                pass


def ended_for_good(entries: Iterable[LedgerEntry]) -> LedgerEntry | None:
    """The end, if no later attempt was begun."""
    newest = next(reversed(list(of_kind(entries, Transition))), None)
    return newest[0] if newest is not None and newest[1].to_state in TERMINAL else None


def intents(task: TaskHistory) -> dict[str, tuple[LedgerEntry, ToolIntent]]:
    """The first intent of each call."""
    by_call: dict[str, tuple[LedgerEntry, ToolIntent]] = {}
    for entry, intent in of_kind(own(task.entries), ToolIntent):
        by_call.setdefault(intent.call_id, (entry, intent))
    return by_call


def settled_by_waits(task: TaskHistory) -> Iterator[tuple[LedgerEntry, str]]:
    """The outcomes that came without a claim, of calls for which the task waited, or that were refused to spawn: the
    ledger's own.
    """
    waiting, spawns = "", set[str]()
    for entry in own(task.entries):
        match entry.body:
            case Transition(to_state=to_state, wait=wait):
                waiting = wait.call_id if wait is not None and to_state in WAITING else ""
            case ToolIntent(tool=tool, call_id=call_id) if tool == SPAWN_SUB_AGENTS:
                spawns.add(call_id)
            case ToolOutcome(call_id=call_id) if not entry.epoch and (call_id == waiting or call_id in spawns):
                yield entry, call_id
            case _:
                pass


def leaves(task: TaskHistory) -> dict[str, tuple[LedgerEntry, WaitResolution]]:
    """The answers by which a person gave leave to a call."""
    return {
        answer.call_id: (entry, answer)
        for entry, answer in of_kind(own(task.entries), WaitResolution)
        if leaves_call_open(answer.wait_kind, answer.answer_kind, answer.answer)
    }


def drives_itself(task: TaskHistory) -> bool:
    """Whether our own loop drives the task: another loop may order its facts as it likes."""
    goal = next(of_kind(task.entries, Submitted), None)
    return goal is None or goal[1].spec.agent.loop == DEFAULT_LOOP


def drives_functions(task: TaskHistory) -> bool:
    """Whether our own loop runs a function of control work."""
    goal = next(of_kind(task.entries, Submitted), None)
    return goal is not None and goal[1].spec.control is not None


def place(entry: LedgerEntry) -> str:
    """Where to look."""
    return f"entry {entry.sequence} ({name(entry.body)})"


def name(body: Body | None) -> str:
    """A body's kind, as `tenure entries` calls it."""
    message = type(body).__name__ if body is not None else "OfUnknownKind"
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in message).lstrip("_")


def claim(fence: Fence) -> str:
    """Which claim."""
    return f"epoch {describe_epoch(fence.epoch)} (claim {fence.claim_id or '-'})"
