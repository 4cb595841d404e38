"""Checks and decodes a commit before it waits for its batch, so that a bad commit affects no other commit."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

from services.checkpoint.commit.owner_bodies import problem_of_body
from services.checkpoint.entries import KINDS, WRITTEN_BY_OWNERS
from tenure.domain.budget import MAX_TOKENS, ReserveRequest, TokenUsage
from tenure.domain.close_out import CallOpened, CallSettled
from tenure.domain.entries import ToolIntent
from tenure.domain.errors import InvalidRequest
from tenure.domain.outputs import RECORD_OUTPUT
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS
from tenure.v1 import tool_pb2
from tenure.validators import validate
from tenure.validators.rules import CALL_ID
from tenure.wire.common import STATES, seconds
from tenure.wire.task import usage_to_domain, wait_to_domain
from tenure.wire.tool import calls_in_doubt_to_domain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tenure.domain.fencing import Claims, Fence
    from tenure.domain.in_doubt import CallInDoubt
    from tenure.domain.waits import Wait
    from tenure.v1 import checkpoint_service_pb2 as pb
    from tenure.v1 import ledger_pb2
    from tenure.wire.token import TokenChecker

_SEPARATOR: Final = b"\x00"
"""Between the parts of a commit's digest, so that a text cannot move from one part to another unnoticed."""


class PreparedEntry(NamedTuple):
    """An entry as the ledger stores it."""

    step: int
    kind: int
    body: bytes


class Settlement(NamedTuple):
    """The settlement of a model attempt, from one of the commit's entries."""

    step: int
    attempt_number: int
    usage: TokenUsage
    model: str
    provider_request_id: str


class PreparedTransition(NamedTuple):
    """The transition out of RUNNING that the owner asks for."""

    to_state: TaskState
    reason: str
    message: str
    result: str
    retry_delay_seconds: float
    wait: Wait | None
    result_json: str
    error_class: str
    in_doubt: tuple[CallInDoubt, ...]
    outputs: tuple[tool_pb2.TaskOutput, ...]


class PreparedCommit(NamedTuple):
    """All that a batch needs of one commit. `step`: the highest of its entries, or 0."""

    task_id: str
    fence: Fence
    tenant: str
    holder: str
    commit_id: str
    commit_number: int
    known_sequence: int
    payload_hash: bytes
    entries: Sequence[PreparedEntry]
    calls: Sequence[CallOpened | CallSettled]
    settlement: Settlement | None
    move: PreparedTransition | None
    reserve: ReserveRequest | None
    size_bytes: int
    step: int
    spawns: tuple[ToolIntent, ...] = ()
    output_calls: tuple[ToolIntent, ...] = ()
    outputs: Sequence[tool_pb2.TaskOutput] = ()


def prepare(request: pb.CommitRequest, tokens: TokenChecker, *, validated: bool) -> PreparedCommit:
    """Verifies the token and decodes the request. Raises InvalidRequest, Unauthenticated or PermissionDenied.

    `validated`: the server's interceptor has validated the request already.
    """
    if not validated:
        validate(request)
    claims = tokens.check(request.token)
    task_id = task_of(claims)
    read = _Entries(request)
    return PreparedCommit(  # with positional arguments: names would take as long again
        task_id,
        claims.fence,
        claims.tenant,
        claims.holder,
        request.commit_id,
        request.commit_number,
        request.known_sequence,
        digest_of(request, read.entries),
        read.entries,
        read.calls,
        read.settlement,
        _move(request) if request.HasField("transition") else None,
        _reserve(request.reserve) if request.HasField("reserve") else None,
        read.size_bytes,
        read.step,
        read.intents_of(SPAWN_SUB_AGENTS),
        read.intents_of(RECORD_OUTPUT),
        read.outputs,
    )


def task_of(claims: Claims) -> str:
    """Returns the token's task id. Raises InvalidRequest: a signed id that is not a UUID would fail a whole batch."""
    try:
        return _canonical(claims.task_id)
    except ValueError:
        raise InvalidRequest(violations=[("token", "its task_id is not a UUID")]) from None


@lru_cache(maxsize=65_536)  # each commit of a task presents the same id
def _canonical(task_id: str) -> str:
    return str(UUID(task_id))


class _Entries:
    """All that one pass over the entries of a commit finds. Raises InvalidRequest.

    - step: the highest step, or 0
    - settlement: at most one, because at most one model attempt is open
    - outputs: that the outcomes record, with their call ids
    """

    __slots__ = ("_intents", "_settled", "calls", "entries", "outputs", "settlement", "size_bytes", "step")

    def __init__(self, request: pb.CommitRequest) -> None:
        self.entries: list[PreparedEntry] = []
        self.calls: list[CallOpened | CallSettled] = []
        self.settlement: Settlement | None = None
        self.outputs: list[tool_pb2.TaskOutput] = []
        self.size_bytes = self.step = 0
        self._intents: list[ledger_pb2.ToolIntent] = []
        self._settled: set[str] = set()
        for entry in request.entries:
            self._add(entry.step, entry.body)
        if request.transition.HasField("wait") and self.intents_of(SPAWN_SUB_AGENTS):  # they do not exist before
            message = "must come in a commit after the one with the intent of spawn_sub_agents"
            raise InvalidRequest(violations=[("transition.wait", message)])

    def _add(self, step: int, body: ledger_pb2.EntryBody) -> None:
        kind = body.WhichOneof("body")
        if kind not in WRITTEN_BY_OWNERS:
            message = "is empty" if kind is None else f"the entry kind {kind} is written only by the ledger"
            raise self._refusal("body", message)
        if step < 0:
            raise self._refusal("step", "must not be negative")
        if problem := problem_of_body(kind, body):
            raise self._refusal(f"body.{kind}", problem)
        if kind in _TAKEN:
            _TAKEN[kind](self, step, getattr(body, kind))
        stored = body.SerializeToString(deterministic=True)
        self.entries.append(PreparedEntry(step, KINDS[kind], stored))
        self.size_bytes += len(stored)
        self.step = max(self.step, step)

    def intents_of(self, tool: str) -> tuple[ToolIntent, ...]:
        """Returns the calls of a tool that the ledger carries out: those that the commit does not settle itself."""
        if not self._intents:
            return ()
        return tuple(
            ToolIntent(one.call_id, one.tool_use_id, one.tool, one.arguments_json)
            for one in self._intents
            if one.tool == tool and one.call_id not in self._settled
        )

    def take_intent(self, _step: int, intent: ledger_pb2.ToolIntent) -> None:
        self._check_id(intent.call_id)
        self.calls.append(CallOpened(intent.call_id))
        self._intents.append(intent)

    def take_outcome(self, _step: int, outcome: ledger_pb2.ToolOutcome) -> None:
        call_id = outcome.call_id
        self._check_id(call_id)
        self.calls.append(CallSettled(call_id))
        self._settled.add(call_id)
        result = outcome.outcome
        if result.HasField("output") and result.status == tool_pb2.OUTCOME_STATUS_SUCCEEDED:
            output = tool_pb2.TaskOutput()
            output.CopyFrom(result.output)
            output.call_id = call_id
            self.outputs.append(output)

    def take_answer(self, step: int, answer: ledger_pb2.AssistantMessage) -> None:
        self._settle(step, answer, answer.model)

    def take_failure(self, step: int, failure: ledger_pb2.ModelFailure) -> None:
        self._settle(step, failure, "")

    def _settle(self, step: int, settled: ledger_pb2.AssistantMessage | ledger_pb2.ModelFailure, model: str) -> None:
        if self.settlement is not None:
            raise self._refusal("body", "settles a second model attempt; a commit settles at most one")
        usage = usage_to_domain(settled.usage)
        if not usage.is_possible:
            raise self._refusal("body", f"usage must be 0 to {MAX_TOKENS}")
        self.settlement = Settlement(step, settled.attempt_number, usage, model, settled.provider_request_id)

    def _check_id(self, call_id: str) -> None:
        if CALL_ID.match(call_id) is None:
            raise self._refusal("body", 'call_id must be "<step>.<index>"')

    def _refusal(self, field: str, description: str) -> InvalidRequest:
        """Returns the refusal of the entry that is being added."""
        return InvalidRequest(violations=[(f"entries[{len(self.entries)}].{field}", description)])


_TAKEN: Final[dict[str, Callable[[_Entries, int, Any], None]]] = {
    "assistant_message": _Entries.take_answer,
    "model_failure": _Entries.take_failure,
    "tool_intent": _Entries.take_intent,
    "tool_outcome": _Entries.take_outcome,
}
"""The kinds of entries that change more than the history."""


def _move(request: pb.CommitRequest) -> PreparedTransition:
    transition = request.transition
    try:
        to_state = STATES.to_domain(transition.to_state)
    except ValueError:
        raise InvalidRequest(violations=[("transition.to_state", "unknown state")]) from None
    if transition.result and to_state not in TERMINAL:
        raise InvalidRequest(violations=[("transition.result", "is only for terminal states")])
    if to_state is TaskState.RETRY_SCHEDULED and not transition.HasField("retry_delay"):
        raise InvalidRequest(violations=[("transition.retry_delay", "must be set for RETRY_SCHEDULED")])
    return PreparedTransition(
        to_state,
        transition.reason,
        transition.message,
        transition.result,
        seconds(transition.retry_delay),
        _wait(transition, to_state),
        transition.result_json,
        transition.error_class,
        _in_doubt(transition, to_state),
        tuple(transition.outputs),
    )


def _in_doubt(transition: pb.Transition, to_state: TaskState) -> tuple[CallInDoubt, ...]:
    """Returns the calls in doubt that the transition names."""
    calls = calls_in_doubt_to_domain(transition.calls_in_doubt)
    if not calls:
        return ()
    if (
        to_state is not TaskState.WAITING_USER
        or transition.reason != Reason.TOOL_IN_DOUBT
        or transition.HasField("wait")
    ):
        message = f"is only for {TaskState.WAITING_USER} / {Reason.TOOL_IN_DOUBT} without a wait"
        raise InvalidRequest(violations=[("transition.calls_in_doubt", message)])
    if len({call.call_id for call in calls}) < len(calls):
        raise InvalidRequest(violations=[("transition.calls_in_doubt", "names a call twice")])
    return calls


def _wait(transition: pb.Transition, to_state: TaskState) -> Wait | None:
    """Returns the wait that the transition begins. A wait for a person is in WAITING_USER, any other in
    WAITING_EXTERNAL.
    """
    if not transition.HasField("wait"):
        return None
    wait = replace(wait_to_domain(transition.wait), timeout_seconds=seconds(transition.wait_timeout), wait_id="")
    if to_state is not (TaskState.WAITING_USER if wait.is_for_person else TaskState.WAITING_EXTERNAL):
        raise InvalidRequest(violations=[("transition.wait", f"a wait of kind {wait.kind} cannot be in {to_state}")])
    return wait


def _reserve(reserve: pb.Reserve) -> ReserveRequest:
    return ReserveRequest(
        step=reserve.step,
        attempt_number=reserve.attempt_number,
        model=reserve.model,
        input_tokens=reserve.input_tokens,
        max_output_tokens=reserve.max_output_tokens,
        min_output_tokens=reserve.min_output_tokens,
        summary_through_step=reserve.summary_through_step,
        outlives_worker=reserve.outlives_worker,
    )


def digest_of(request: pb.CommitRequest, entries: Sequence[PreparedEntry]) -> bytes:
    """Returns a digest of all but the token, because the token may be issued anew between a commit and its repeat."""
    parts = [b"%d %d" % (request.commit_number, request.known_sequence)]
    for step, kind, body in entries:
        parts += (b" %d %d %d " % (step, kind, len(body)), body)
    for name in ("transition", "reserve"):
        parts.append(_SEPARATOR)
        if request.HasField(name):
            parts += (getattr(request, name).SerializeToString(deterministic=True), _SEPARATOR)
    return blake2b(b"".join(parts), digest_size=16).digest()
