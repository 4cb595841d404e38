"""The constraints of the contract. What each field may hold is said beside it in protos/; here it is enforced.

One hook of the server's interceptor calls `validate` for every request. A frame of a stream is checked for its own
bounds only: what is inside is checked one by one by the service, so that one bad commit harms no neighbour.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from tenure.domain.errors import FieldViolation, InvalidRequest
from tenure.domain.states import ReleaseReason
from tenure.domain.task import MAX_TIMEOUT_SECONDS
from tenure.v1 import admin_service_pb2 as admin
from tenure.v1 import checkpoint_service_pb2 as checkpoint
from tenure.v1 import coordinator_service_pb2 as coordinator
from tenure.v1 import task_pb2, token_pb2
from tenure.v1 import task_service_pb2 as tasks
from tenure.v1 import tool_service_pb2 as tools
from tenure.v1 import worker_service_pb2 as worker
from tenure.wire.times import seconds

MAX_GOAL_BYTES: Final = 256 * 1024
MAX_SYSTEM_BYTES: Final = 256 * 1024
MAX_OUTPUT_TOKENS: Final = 64_000
MAX_LABELS: Final = 32
MAX_ENTRIES: Final = 256
MAX_COMMIT_BYTES: Final = 1024 * 1024
MAX_ARGUMENT_BYTES: Final = 1024 * 1024
MAX_FRAME_ITEMS: Final = 128
MAX_FRAME_BYTES: Final = 2 * 1024 * 1024
MAX_WAIT_SECONDS: Final = 600
MAX_HOLDINGS: Final = 10_000
MAX_SLOTS: Final = 10_000
MAX_CHOICES: Final = 64
MAX_ID_CHARACTERS: Final = 64

TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}\Z")
NAME: Final = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}\Z")
CALL_ID: Final = re.compile(r"[0-9]{1,15}\.[0-9]{1,15}\Z")


class Violations:
    """Collects what is wrong, all of it, with the path of each field."""

    def __init__(self) -> None:
        self.found: list[FieldViolation] = []

    def require(self, holds: bool, field: str, description: str) -> None:
        if not holds:
            self.found.append(FieldViolation(field, description))

    def uuid(self, field: str, value: str) -> None:
        self.require(_is_uuid(value), field, "must be a UUID")

    def length(self, field: str, value: str, least: int, most: int) -> None:
        self.require(least <= len(value) <= most, field, f"must have {least} to {most} characters")

    def known(self, field: str, values: Any, number: int) -> None:
        """A choice we do not know must not be taken for the default. Unspecified is one of the values."""
        self.require(number in values.values(), field, f"is none of {', '.join(values.keys())}")

    def between(self, field: str, value: float, least: float, most: float) -> None:
        self.require(least <= value <= most, field, f"must be {least:g} to {most:g}")


Check = Callable[[Any, Violations], None]


def validate(request: Message) -> None:
    """Raises InvalidRequest with every violation found; requests without constraints pass."""
    check = _CHECKS.get(type(request))
    if check is None:
        return
    violations = Violations()
    check(request, violations)
    if violations.found:
        raise InvalidRequest(violations=violations.found)


def _is_uuid(value: str) -> bool:
    if len(value) != 36:
        return False
    try:
        UUID(value)
    except ValueError:
        return False
    return True


def _duration(field: str, value: Duration, most_seconds: float, v: Violations) -> None:
    v.between(field, seconds(value), 0, most_seconds)


def _token(token: token_pb2.FencingToken, v: Violations, field: str = "token") -> None:
    v.require(bool(token.claims and token.key_id and token.signature), field, "must be a signed fencing token")


def _spec(spec: Any, v: Violations, prefix: str = "") -> None:
    """TaskSpec, and SubmitTaskRequest that has the same fields."""
    v.require(0 < len(spec.goal.encode()) <= MAX_GOAL_BYTES, f"{prefix}goal", f"must have 1 to {MAX_GOAL_BYTES} bytes")
    _agent(spec.agent, v, f"{prefix}agent")
    v.require(spec.limits.max_tokens >= 0, f"{prefix}limits.max_tokens", "must not be negative")
    v.require(spec.limits.max_steps >= 0, f"{prefix}limits.max_steps", "must not be negative")
    _duration(f"{prefix}limits.timeout", spec.limits.timeout, MAX_TIMEOUT_SECONDS, v)
    _retry(spec.policy.retry, v, f"{prefix}policy.retry")
    v.known(f"{prefix}policy.on_lease_lost", task_pb2.LeaseLostPolicy, spec.policy.on_lease_lost)
    v.known(f"{prefix}policy.on_in_doubt", task_pb2.InDoubtPolicy, spec.policy.on_in_doubt)
    v.known(f"{prefix}priority", task_pb2.Priority, spec.priority)
    v.known(f"{prefix}source.kind", task_pb2.SourceKind, spec.source.kind)
    v.require(not spec.queue or bool(NAME.match(spec.queue)), f"{prefix}queue", "must be a name of up to 63 characters")
    _labels(spec.labels, v, f"{prefix}labels")
    v.length(f"{prefix}source.source_id", spec.source.source_id, 0, 200)
    v.length(f"{prefix}source.source_run_id", spec.source.source_run_id, 0, 200)


def _agent(agent: task_pb2.AgentSpec, v: Violations, field: str) -> None:
    v.require(not agent.loop or bool(NAME.match(agent.loop)), f"{field}.loop", "must be a name of up to 63 characters")
    v.length(f"{field}.model", agent.model, 0, 200)
    v.require(len(agent.system.encode()) <= MAX_SYSTEM_BYTES, f"{field}.system", f"at most {MAX_SYSTEM_BYTES} bytes")
    for index, name in enumerate(agent.tools.names):
        v.require(bool(TOOL_NAME.match(name)), f"{field}.tools.names[{index}]", "must be 1 to 64 of [a-zA-Z0-9_-]")
    v.between(f"{field}.max_output_tokens", agent.max_output_tokens, 0, MAX_OUTPUT_TOKENS)


def _retry(retry: task_pb2.RetryPolicy, v: Violations, field: str) -> None:
    v.between(f"{field}.max_attempts", retry.max_attempts, 0, 100)
    v.require(retry.factor == 0 or 1 <= retry.factor <= 10, f"{field}.factor", "must be 1 to 10")
    _duration(f"{field}.initial_backoff", retry.initial_backoff, 3600, v)
    _duration(f"{field}.max_backoff", retry.max_backoff, 24 * 3600, v)


def _labels(labels: Any, v: Violations, field: str) -> None:
    v.require(len(labels) <= MAX_LABELS, field, f"at most {MAX_LABELS}")
    for key, value in labels.items():
        v.length(f"{field}[{key!r}]", key, 1, 63)
        v.length(f"{field}[{key!r}]", value, 0, 200)


def _task_id(request: Any, v: Violations) -> None:
    v.uuid("task_id", request.task_id)


def _submit(request: tasks.SubmitTaskRequest, v: Violations) -> None:
    v.length("request_id", request.request_id, 0, 128)
    _spec(request, v)


def _create(request: checkpoint.CreateTaskRequest, v: Violations) -> None:
    v.length("request_id", request.request_id, 1, 128)
    _spec(request.spec, v, "spec.")


def _wait(request: tasks.WaitTaskRequest, v: Violations) -> None:
    _task_id(request, v)
    _duration("timeout", request.timeout, MAX_WAIT_SECONDS, v)


def _watch(request: Any, v: Violations) -> None:
    _task_id(request, v)
    v.require(request.after_sequence >= 0, "after_sequence", "must not be negative")


def _entries(request: Any, v: Violations) -> None:
    _watch(request, v)
    v.between("page_size", request.page_size, 0, 1000)


def _list(request: Any, v: Violations) -> None:
    v.between("page_size", request.page_size, 0, 500)
    v.length("page_token", request.page_token, 0, 512)
    _labels(request.filter.labels, v, "filter.labels")
    if request.filter.root_task_id:
        v.uuid("filter.root_task_id", request.filter.root_task_id)


def _cancel(request: tasks.CancelTaskRequest, v: Violations) -> None:
    _task_id(request, v)
    v.length("reason", request.reason, 0, 1000)


def _guarded(request: Any, v: Violations) -> None:
    _token(request.token, v)


def _commit(request: checkpoint.CommitRequest, v: Violations) -> None:
    _token(request.token, v)
    v.uuid("commit_id", request.commit_id)
    v.require(request.commit_number >= 1, "commit_number", "must be 1 or more")
    v.require(request.known_sequence >= 0, "known_sequence", "must not be negative")
    v.require(len(request.entries) <= MAX_ENTRIES, "entries", f"at most {MAX_ENTRIES}")
    v.require(request.ByteSize() <= MAX_COMMIT_BYTES, "entries", f"at most {MAX_COMMIT_BYTES} bytes together")
    something = bool(request.entries) or request.HasField("transition") or request.HasField("reserve")
    v.require(something, "entries", "must not be empty without a transition or a reserve")
    both = request.HasField("transition") and request.HasField("reserve")
    v.require(not both, "reserve", "a task that leaves RUNNING makes no model call")
    if request.HasField("reserve"):
        _reserve(request.reserve, v)
    if request.HasField("transition"):
        _transition(request.transition, v)


def _reserve(reserve: checkpoint.Reserve, v: Violations) -> None:
    v.require(reserve.step >= 1, "reserve.step", "must be 1 or more")
    v.require(reserve.attempt_number >= 1, "reserve.attempt_number", "must be 1 or more")
    v.require(reserve.input_tokens >= 0, "reserve.input_tokens", "must not be negative")
    v.between("reserve.min_output_tokens", reserve.min_output_tokens, 1, max(1, reserve.max_output_tokens))
    v.require(reserve.max_output_tokens >= 1, "reserve.max_output_tokens", "must be 1 or more")


def _transition(transition: checkpoint.Transition, v: Violations) -> None:
    v.require(bool(transition.to_state), "transition.to_state", "must be set")
    v.length("transition.reason", transition.reason, 1, 64)
    v.require(len(transition.message) <= 4000, "transition.message", "at most 4,000 characters")
    _duration("transition.retry_delay", transition.retry_delay, 24 * 3600, v)


def _frame(items: str) -> Check:
    def check(request: Any, v: Violations) -> None:
        v.require(len(getattr(request, items)) <= MAX_FRAME_ITEMS, items, f"at most {MAX_FRAME_ITEMS}")
        v.require(request.ByteSize() <= MAX_FRAME_BYTES, items, f"at most {MAX_FRAME_BYTES} bytes together")

    return check


def _most(items: str, most: int) -> Check:
    def check(request: Any, v: Violations) -> None:
        given = getattr(request, items)
        v.require(len(given) <= most, items, f"at most {most}")
        for index, one in enumerate(given):
            v.uuid(f"{items}[{index}].task_id", one.task_id)

    return check


def _running(request: checkpoint.ListRunningRequest, v: Violations) -> None:
    v.between("page_size", request.page_size, 0, 1000)
    if request.after_task_id:
        v.uuid("after_task_id", request.after_task_id)


def _claimable(request: checkpoint.ListClaimableRequest, v: Violations) -> None:
    v.between("limit", request.limit, 1, 128)
    _duration("reserve_duration", request.reserve_duration, 60, v)


def _endings(request: checkpoint.ListEndingsRequest, v: Violations) -> None:
    v.between("limit", request.limit, 1, 128)
    _duration("grace", request.grace, 60, v)


def _foreign(request: checkpoint.AppendForeignRequest, v: Violations) -> None:
    _task_id(request, v)
    v.length("request_id", request.request_id, 1, 128)
    v.length("actor", request.actor, 1, 200)
    v.require(request.WhichOneof("fact") is not None, "fact", "must be set")
    size = len(request.user_message.text.encode())
    v.require(size <= MAX_GOAL_BYTES, "user_message.text", f"at most {MAX_GOAL_BYTES} bytes")
    v.length("cancel_request.reason", request.cancel_request.reason, 0, 1000)


def _execute(request: tools.ExecuteRequest, v: Violations) -> None:
    _token(request.token, v)
    v.require(bool(CALL_ID.match(request.call_id)), "call_id", 'must be "<step>.<index>"')
    v.require(0 < len(request.tool) <= 128, "tool", "must have 1 to 128 characters")
    size = len(request.arguments_json.encode())
    v.require(size <= MAX_ARGUMENT_BYTES, "arguments_json", f"at most {MAX_ARGUMENT_BYTES} bytes")


def _session(request: coordinator.SessionRequest, v: Violations) -> None:
    message = request.WhichOneof("message")
    v.require(message is not None, "message", "must be set")
    match message:
        case "hello":
            _hello(request.hello, v)
        case "renew":
            v.require(request.renew.renew_number >= 1, "renew.renew_number", "must be 1 or more")
            _holdings("renew.holdings", request.renew.holdings, v)
            _slots("renew", request.renew, v)
        case "slots":
            _slots("slots", request.slots, v)
        case "release":
            _claim_ids("release", request.release, v)
            v.require(request.release.reason in _RELEASE_REASONS, "release.reason", f"is none of {_RELEASE_NAMES}")


def _hello(hello: coordinator.Hello, v: Violations) -> None:
    v.length("hello.worker_id", hello.worker_id, 1, 128)
    v.length("hello.session_id", hello.session_id, 0, MAX_ID_CHARACTERS)
    v.length("hello.live_address", hello.live_address, 0, 300)
    v.between("hello.free_slots", hello.free_slots, 0, MAX_SLOTS)
    _holdings("hello.holdings", hello.holdings, v)
    _names("hello.queues", hello.queues, v)
    _names("hello.loops", hello.loops, v)
    v.require(len(hello.priorities) <= MAX_CHOICES, "hello.priorities", f"at most {MAX_CHOICES}")
    for index, priority in enumerate(hello.priorities[:MAX_CHOICES]):
        v.known(f"hello.priorities[{index}]", task_pb2.Priority, priority)


def _names(field: str, names: Any, v: Violations) -> None:
    v.require(len(names) <= MAX_CHOICES, field, f"at most {MAX_CHOICES}")
    for index, name in enumerate(names[:MAX_CHOICES]):
        v.require(bool(NAME.match(name)), f"{field}[{index}]", "must be a name of up to 63 characters")


def _slots(field: str, said: coordinator.Renew | coordinator.Slots, v: Violations) -> None:
    v.between(f"{field}.free_slots", said.free_slots, 0, MAX_SLOTS)
    v.require(said.grants_read >= 0, f"{field}.grants_read", "must not be negative")


def _holdings(field: str, holdings: Any, v: Violations) -> None:
    """With every renewal of every worker: no UUID is parsed here, an id that is none is simply nobody's claim."""
    v.require(len(holdings) <= MAX_HOLDINGS, field, f"at most {MAX_HOLDINGS}")
    for index, holding in enumerate(holdings[:MAX_HOLDINGS]):
        if not (0 < len(holding.task_id) <= MAX_ID_CHARACTERS and 0 < len(holding.claim_id) <= MAX_ID_CHARACTERS):
            _claim_ids(f"{field}[{index}]", holding, v)


def _claim_ids(field: str, named: coordinator.Holding | coordinator.Release, v: Violations) -> None:
    v.length(f"{field}.task_id", named.task_id, 1, MAX_ID_CHARACTERS)
    v.length(f"{field}.claim_id", named.claim_id, 1, MAX_ID_CHARACTERS)


_RELEASE_REASONS: Final = frozenset(ReleaseReason)
_RELEASE_NAMES: Final = ", ".join(ReleaseReason)

_CHECKS: Final[dict[type, Check]] = {
    tasks.SubmitTaskRequest: _submit,
    tasks.GetTaskRequest: _task_id,
    tasks.WaitTaskRequest: _wait,
    tasks.ListTasksRequest: _list,
    tasks.ListTaskEntriesRequest: _entries,
    tasks.WatchTaskRequest: _watch,
    tasks.CancelTaskRequest: _cancel,
    admin.ListRefusalsRequest: _task_id,
    checkpoint.CreateTaskRequest: _create,
    checkpoint.OpenRequest: _guarded,
    checkpoint.CommitRequest: _commit,
    checkpoint.CommitStreamRequest: _frame("commits"),
    checkpoint.CheckpointServiceGetTaskRequest: _task_id,
    checkpoint.CheckpointServiceListTasksRequest: _list,
    checkpoint.ListEntriesRequest: _entries,
    checkpoint.WatchEntriesRequest: _watch,
    checkpoint.ListClaimableRequest: _claimable,
    checkpoint.RegisterGrantsRequest: _most("grants", 128),
    checkpoint.RequeueLostRequest: _most("lost", 512),
    checkpoint.InspectClaimsRequest: _most("claims", 512),
    checkpoint.ListRunningRequest: _running,
    checkpoint.ListEndingsRequest: _endings,
    checkpoint.AppendForeignRequest: _foreign,
    checkpoint.ListRefusedWritesRequest: _task_id,
    coordinator.SessionRequest: _session,
    tools.ListToolsRequest: _guarded,
    tools.ExecuteRequest: _execute,
    tools.ExecuteStreamRequest: _frame("calls"),
    tools.FenceRequest: _guarded,
    tools.ListRefusedCallsRequest: _task_id,
    worker.WatchLiveRequest: _task_id,
}
