"""Helpers of the checks: amounts and charges, hashes, queries of a ledger, and names for messages."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING, Final, TypeVar

from checker.history import LedgerEntry, TaskHistory
from tenure.domain.budget import MAX_NANO_USD
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
from tenure.domain.task import DEFAULT_LOOP, REPLAY_LOOP
from tenure.domain.tools import Outcome
from tenure.domain.waits import leaves_call_open

if TYPE_CHECKING:
    from tenure.domain.budget import Prices, TokenUsage


# Amounts and charges. They are implemented a second time here, independently of the ledger's own arithmetic.


@dataclass(frozen=True, slots=True)
class Amount:
    """A number of tokens and an amount of money in nano USD. As text: `120 (5000 n$)`."""

    tokens: int = 0
    nano_usd: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.tokens + other.tokens, self.nano_usd + other.nano_usd)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.tokens - other.tokens, self.nano_usd - other.nano_usd)

    @property
    def above_nothing(self) -> Amount:
        """Both parts, with 0 instead of a negative value."""
        return Amount(max(0, self.tokens), max(0, self.nano_usd))

    def __str__(self) -> str:
        return f"{self.tokens}" + (f" ({self.nano_usd} n$)" if self.nano_usd else "")


NOTHING: Final = Amount()


def charge(prices: Prices | None, usage: TokenUsage) -> int:
    """Returns the cost of a model call in nano USD, rounded up and bounded by MAX_NANO_USD.

    The rates are those of the highest tier whose threshold the input exceeds.
    """
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
    return min(MAX_NANO_USD, ceil(sum((Fraction(tokens * rate, 10**6) for tokens, rate in parts), Fraction())))


# Hashes that compare a call in the ledger with its call record.


def arguments_hash(tool: str, arguments_json: str) -> bytes:
    """Returns the hash of the tool and the exact bytes of its arguments, as the tool service computes it."""
    stored_name = tool.replace("\0", "\N{REPLACEMENT CHARACTER}")
    return hashlib.sha256(stored_name.encode() + b"\0" + arguments_json.encode()).digest()


def outcome_hash(outcome: Outcome) -> bytes:
    """Returns the hash of the outcome's parts that the model reads: status, detail and content."""
    return hashlib.sha256(f"{outcome.status}\0{outcome.detail}\0{outcome.content}".encode()).digest()


B = TypeVar("B")

FORK_HEAD: Final = 2
"""The sequence of the entry `forked`, which has the number of copied entries after it."""

TIME_GRAIN_SECONDS: Final = 0.001
"""The precision for comparisons of times of one database, because they were converted to floats."""


def of_kind(entries: Iterable[LedgerEntry], kind: type[B]) -> Iterator[tuple[LedgerEntry, B]]:
    """Yields the entries of one kind with their bodies."""
    for entry in entries:
        if isinstance(entry.body, kind):
            yield entry, entry.body


def own(entries: Iterable[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """Returns a task's entries in order, without the entries that a fork copied, which belong to another task."""
    all_entries = tuple(entries)
    second = all_entries[FORK_HEAD - 1].body if len(all_entries) >= FORK_HEAD else None
    if not isinstance(second, Forked):
        return all_entries
    return all_entries[:FORK_HEAD] + all_entries[FORK_HEAD + second.copied_entries :]


def opens(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """Yields the entries by which claims opened the task."""
    return (entry for entry, move in of_kind(entries, Transition) if move.to_state is TaskState.RUNNING)


def ends(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """Yields the entries that ended the task. A correct ledger has at most one per attempt."""
    return (entry for entry, move in of_kind(entries, Transition) if move.to_state in TERMINAL)


def requeues(entries: Iterable[LedgerEntry]) -> Iterator[LedgerEntry]:
    """Yields the entries by which operators requested the next attempt.

    A budget grant does so for a task in the state COST_EXCEEDED.
    """
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
    """Returns the entry that ended the task, or None if a later attempt began or the task has not ended."""
    newest = next(reversed(list(of_kind(entries, Transition))), None)
    return newest[0] if newest is not None and newest[1].to_state in TERMINAL else None


def intents(task: TaskHistory) -> dict[str, tuple[LedgerEntry, ToolIntent]]:
    """Returns the first intent of each call by call id."""
    by_call: dict[str, tuple[LedgerEntry, ToolIntent]] = {}
    for entry, intent in of_kind(own(task.entries), ToolIntent):
        by_call.setdefault(intent.call_id, (entry, intent))
    return by_call


def settled_by_waits(task: TaskHistory) -> Iterator[tuple[LedgerEntry, str]]:
    """Yields the outcomes that the ledger itself wrote, without a claim, with their call ids.

    They belong to calls for which the task waited, and to refused calls that asked for sub-agents.
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


def approvals(task: TaskHistory) -> dict[str, tuple[LedgerEntry, WaitResolution]]:
    """Returns the answers by which a person approved a call, by call id."""
    return {
        answer.call_id: (entry, answer)
        for entry, answer in of_kind(own(task.entries), WaitResolution)
        if leaves_call_open(answer.wait_kind, answer.answer_kind, answer.answer)
    }


def drives_itself(task: TaskHistory) -> bool:
    """Whether Tenure's loop `messages` drives the task. Other loops may order their entries freely."""
    goal = next(of_kind(task.entries, Submitted), None)
    return goal is None or goal[1].spec.agent.loop == DEFAULT_LOOP


def drives_functions(task: TaskHistory) -> bool:
    """Whether Tenure's loop `control` runs the task's control function."""
    goal = next(of_kind(task.entries, Submitted), None)
    return goal is not None and goal[1].spec.control is not None


def replays(task: TaskHistory) -> bool:
    """Whether the record of another task answers the calls, so that the tool service has none."""
    goal = next(of_kind(task.entries, Submitted), None)
    return goal is not None and goal[1].spec.agent.loop == REPLAY_LOOP


def place(entry: LedgerEntry) -> str:
    """Names an entry in a message: its sequence and its kind."""
    return f"entry {entry.sequence} ({name(entry.body)})"


def name(body: Body | None) -> str:
    """Returns the entry kind of a body, as `tenure tasks entries` shows it."""
    class_name = type(body).__name__ if body is not None else "OfUnknownKind"
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in class_name).lstrip("_")


def claim(fence: Fence) -> str:
    """Names a claim in a message: its epoch and its id."""
    return f"epoch {describe_epoch(fence.epoch)} (claim {fence.claim_id or '-'})"
