"""Checks and decodes a commit before it waits for its batch, so that a bad commit affects no other commit."""

from __future__ import annotations

from dataclasses import astuple, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

from services.checkpoint.commit.outputs import outputs_in
from services.checkpoint.commit.owner_bodies import problem_of_body
from services.checkpoint.entries import KINDS, WRITTEN_BY_OWNERS
from tenure.domain.budget import MAX_TOKENS, ReserveRequest, TokenUsage
from tenure.domain.close_out import CallOpened, CallSettled
from tenure.domain.entries import ToolIntent
from tenure.domain.errors import InvalidRequest
from tenure.domain.outputs import RECORD_OUTPUT
from tenure.domain.states import TERMINAL, Reason, TaskState
from tenure.domain.sub_agents import SPAWN_SUB_AGENTS
from tenure.validators import CALL_ID, validate
from tenure.wire.common import STATES, seconds
from tenure.wire.ledger import settled_usage
from tenure.wire.task import wait_to_domain
from tenure.wire.tool import calls_in_doubt_to_domain

if TYPE_CHECKING:
    from tenure.domain.fencing import Claims, Fence
    from tenure.domain.in_doubt import CallInDoubt
    from tenure.domain.waits import Wait
    from tenure.v1 import checkpoint_service_pb2 as pb
    from tenure.v1 import ledger_pb2, tool_pb2
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
    """All that a batch needs of one commit."""

    task_id: str
    fence: Fence
    tenant: str
    holder: str
    commit_id: str
    commit_number: int
    known_sequence: int
    payload_hash: bytes
    entries: tuple[PreparedEntry, ...]
    calls: tuple[CallOpened | CallSettled, ...]
    settlement: Settlement | None
    move: PreparedTransition | None
    reserve: ReserveRequest | None
    size_bytes: int
    spawns: tuple[ToolIntent, ...] = ()
    output_calls: tuple[ToolIntent, ...] = ()
    outputs: tuple[tool_pb2.TaskOutput, ...] = ()

    @property
    def step(self) -> int:
        """The highest step of its entries, or 0."""
        return max((entry.step for entry in self.entries), default=0)


def prepare(request: pb.CommitRequest, tokens: TokenChecker, *, validated: bool) -> PreparedCommit:
    """Verifies the token and decodes the request. Raises InvalidRequest, Unauthenticated or PermissionDenied.

    `validated`: the server's interceptor has validated the request already.
    """
    if not validated:
        validate(request)
    claims = tokens.check(request.token)
    task_id = task_of(claims)
    entries = tuple(_entries(request))
    return PreparedCommit(
        task_id=task_id,
        fence=claims.fence,
        tenant=claims.tenant,
        holder=claims.holder,
        commit_id=request.commit_id,
        commit_number=request.commit_number,
        known_sequence=request.known_sequence,
        payload_hash=_hash(request, entries),
        entries=entries,
        calls=tuple(_calls(request)),
        settlement=_settlement(request),
        move=_move(request),
        reserve=_reserve(request),
        size_bytes=sum(len(entry.body) for entry in entries),
        spawns=_spawns(request),
        output_calls=_intents_of(request, RECORD_OUTPUT),
        outputs=outputs_in(request),
    )


def task_of(claims: Claims) -> str:
    """Returns the token's task id. Raises InvalidRequest: a signed id that is not a UUID would fail a whole batch."""
    task_id = claims.task_id
    try:
        UUID(task_id)
    except ValueError:
        raise InvalidRequest(violations=[("token", "its task_id is not a UUID")]) from None
    return task_id


def _entries(request: pb.CommitRequest) -> list[PreparedEntry]:
    entries = []
    for index, entry in enumerate(request.entries):
        kind = entry.body.WhichOneof("body")
        if kind not in WRITTEN_BY_OWNERS:
            message = "is empty" if kind is None else f"the entry kind {kind} is written only by the ledger"
            raise InvalidRequest(violations=[(f"entries[{index}].body", message)])
        if entry.step < 0:
            raise InvalidRequest(violations=[(f"entries[{index}].step", "must not be negative")])
        if problem := problem_of_body(entry.body):
            raise InvalidRequest(violations=[(f"entries[{index}].body.{kind}", problem)])
        entries.append(PreparedEntry(entry.step, KINDS[kind], entry.body.SerializeToString(deterministic=True)))
    return entries


def _calls(request: pb.CommitRequest) -> list[CallOpened | CallSettled]:
    calls: list[CallOpened | CallSettled] = []
    for index, entry in enumerate(request.entries):
        match entry.body.WhichOneof("body"):
            case "tool_intent":
                call_id = entry.body.tool_intent.call_id
                calls.append(CallOpened(call_id))
            case "tool_outcome":
                call_id = entry.body.tool_outcome.call_id
                calls.append(CallSettled(call_id))
            case _:
                continue
        if CALL_ID.match(call_id) is None:
            raise InvalidRequest(violations=[(f"entries[{index}].body", 'call_id must be "<step>.<index>"')])
    return calls


def _spawns(request: pb.CommitRequest) -> tuple[ToolIntent, ...]:
    """Returns the calls of spawn_sub_agents. Their wait must come in a later commit: the sub-agents do not exist
    before.
    """
    spawns = _intents_of(request, SPAWN_SUB_AGENTS)
    if spawns and request.transition.HasField("wait"):
        message = "must come in a commit after the one with the intent of spawn_sub_agents"
        raise InvalidRequest(violations=[("transition.wait", message)])
    return spawns


def _intents_of(request: pb.CommitRequest, tool: str) -> tuple[ToolIntent, ...]:
    """Returns the calls of a tool that the ledger carries out: those that the commit does not settle itself."""
    settled = {entry.body.tool_outcome.call_id for entry in request.entries if entry.body.HasField("tool_outcome")}
    intents = (entry.body.tool_intent for entry in request.entries if entry.body.HasField("tool_intent"))
    return tuple(
        ToolIntent(one.call_id, one.tool_use_id, one.tool, one.arguments_json)
        for one in intents
        if one.tool == tool and one.call_id not in settled
    )


def _settlement(request: pb.CommitRequest) -> Settlement | None:
    """Returns the settlement, if any. A commit settles at most one model attempt, because at most one is open."""
    settlement: Settlement | None = None
    for index, entry in enumerate(request.entries):
        settled = settled_usage(entry.body)
        if settled is None:
            continue
        number, usage = settled
        if settlement is not None:
            raise InvalidRequest(
                violations=[(f"entries[{index}].body", "settles a second model attempt; a commit settles at most one")]
            )
        counts = astuple(usage)
        if min(counts) < 0 or max(counts) > MAX_TOKENS:
            raise InvalidRequest(violations=[(f"entries[{index}].body", f"usage must be 0 to {MAX_TOKENS}")])
        settlement = Settlement(entry.step, number, usage, *_provider_names(entry.body))
    return settlement


def _provider_names(body: ledger_pb2.EntryBody) -> tuple[str, str]:
    """Returns (model, request id) as the model provider reported them."""
    if body.WhichOneof("body") == "assistant_message":
        return body.assistant_message.model, body.assistant_message.provider_request_id
    return "", body.model_failure.provider_request_id


def _move(request: pb.CommitRequest) -> PreparedTransition | None:
    if not request.HasField("transition"):
        return None
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


def _reserve(request: pb.CommitRequest) -> ReserveRequest | None:
    if not request.HasField("reserve"):
        return None
    reserve = request.reserve
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


def _hash(request: pb.CommitRequest, entries: tuple[PreparedEntry, ...]) -> bytes:
    """Returns a digest of all but the token, because the token may be issued anew between a commit and its repeat."""
    digest = blake2b(f"{request.commit_number} {request.known_sequence}".encode(), digest_size=16)
    for entry in entries:
        digest.update(f" {entry.step} {entry.kind} {len(entry.body)} ".encode())
        digest.update(entry.body)
    for name in ("transition", "reserve"):
        digest.update(_SEPARATOR)
        if request.HasField(name):
            digest.update(getattr(request, name).SerializeToString(deterministic=True))
            digest.update(_SEPARATOR)
    return digest.digest()
