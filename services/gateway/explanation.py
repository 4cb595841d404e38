"""Explains to operators why a task is in its state and what it needs to continue. Pure: no I/O and no clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from tenure.domain.budget import Budget, money_text, usd
from tenure.domain.in_doubt import RESOLVE_COMMANDS
from tenure.domain.retry import FailureClass
from tenure.domain.states import TERMINAL, WAITING, Reason, TaskState
from tenure.domain.stops import Stop
from tenure.domain.task import Priority, is_undo_loop, offered_function, plain_loop

MAX_LINES: Final = 10
_MAX_NAMES: Final = 3

REASONS: Final = {
    Reason.SUBMITTED: "it was submitted",
    Reason.LEASE_EXPIRED: "its worker did not renew its lease in time",
    Reason.WORKER_LOST: "the connection to its worker broke",
    Reason.WORKER_STUCK: "its worker made no progress",
    Reason.WORKER_DRAINED: "its worker drained and released it",
    Reason.WORKER_HALTED: "its worker released it, because a service that the worker needs did not answer or failed",
    Reason.WORKER_CRASHED: "its worker failed because of a bug",
    Reason.CLAIM_LOST: "its claim was lost",
    Reason.POOL_CHANGED: "the pool of its worker changed",
    Reason.ENDING_OVER: "a coordinator claimed it to end it, but it had no pending ending any more",
    Reason.CRASH_LOOP: "too many of its workers died",
    Reason.COMMIT_REFUSED: "the ledger refused what its worker wrote",
    Reason.LEDGER_LIMIT: "its history reached the limit of its size",
    Reason.RETRY_DUE: "its retry was due",
    Reason.CANCEL_REQUESTED: "a cancel request ended it",
    Reason.DEADLINE_PASSED: "its deadline passed",
    Reason.QUEUED_TOO_LONG: "no worker took it in time",
    Reason.START_TIMEOUT: "its worker did not open it in time",
    Reason.STEP_TIMEOUT: "one of its steps took too long",
    Reason.MODEL_TIMEOUT: "a model call took too long",
    Reason.TOOL_TIMEOUT: "a tool call took too long",
    Reason.WAIT_EXPIRED: "its wait got no answer in time",
    Reason.CLOSED_BY_ESCALATION: "its wait got no answer before a step of its escalation closed it out",
    Reason.TOKEN_LIMIT: "its token budget was used up",
    Reason.MONEY_LIMIT: "its money budget was used up",
    Reason.MODEL_UNPRICED: "its money is capped, but its model has no price",
    Reason.BUDGET_GRANTED: "an operator granted it more budget",
    Reason.STEP_LIMIT: "it reached its step limit",
    Reason.BUDGET_BUSY: "other model calls had reserved the rest of its budget",
    Reason.TENANT_QUOTA: "its tenant had reached a quota",
    Reason.SUPERSEDED: "a later submit of its source replaced it before it began",
    Reason.STOPPED: "an operator stopped it",
    Reason.TOOL_IN_DOUBT: "a tool call is in doubt: it is not known whether it happened, and it must not happen twice",
    Reason.CALL_RESOLVED: "its calls in doubt were resolved",
    Reason.MODEL_RATE_LIMITED: "the model provider limited its request rate",
    Reason.MODEL_UNAVAILABLE: "the model did not answer",
    Reason.MODEL_ACCOUNT_REFUSED: "the model provider refused the key or the account",
    Reason.MODEL_REJECTED: "the model provider refused the request",
    Reason.MODEL_ANSWER_UNUSABLE: "several answers of the model could not be used",
    Reason.MODEL_EMPTY_ANSWER: "the model's answers were empty",
    Reason.NO_PROGRESS: "its agent repeated itself",
    Reason.FUNCTION_RETURNED: "its function returned",
    Reason.UNDONE: "the effects are undone",
    Reason.UNDO_INCOMPLETE: "a compensation failed",
    Reason.FUNCTION_FAILED: "its function failed",
    Reason.FUNCTION_DIVERGED: "its function does not match its recorded steps",
    Reason.SPAWNED: "its parent spawned it",
    Reason.PARENT_ENDED: "its parent ended",
    Reason.NOT_AWAITED: "its parent no longer waits for it",
    Reason.OPERATOR_REQUEUE: "an operator requeued it",
    Reason.OPERATOR_TRANSFER: "an operator transferred it",
    Reason.OPERATOR_CLOSE_OUT: "an operator closed it out",
    Reason.OPERATOR_WAIT: "an operator lets it wait",
}


@dataclass(frozen=True, slots=True)
class WorkerFact:
    """A live worker, and the queues and loops that it serves. `takes_tenant`: its pool has the task's tenant.

    `build`: of its code; "": none. `priorities`: those that it takes; empty: all.
    """

    worker_id: str
    queues: tuple[str, ...]
    loops: tuple[str, ...]
    draining: bool = False
    takes_tenant: bool = True
    build: str = ""
    priorities: frozenset[Priority] = frozenset()


@dataclass(frozen=True, slots=True)
class PinFact:
    """The revision that a task is pinned to. `builds`: those that can run it; None: the registry did not answer.

    `needs_build` False: any worker with the agent, or without code, can run it.
    """

    reference: str
    needs_build: bool = False
    builds: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True)
class CallFact:
    """A call without an outcome. `standing`: its state at the tool service; "": no state, or no answer.

    `settled_seconds`: since when the tool service tries to learn its end; None: it does not.
    """

    call_id: str
    tool: str
    standing: str = ""
    settled_seconds: float | None = None

    @property
    def state_text(self) -> str:
        """The state for people."""
        if self.settled_seconds is None:
            return self.standing or "not begun"
        return f"its answer was lost: Tenure settles it, for {span(self.settled_seconds)} now"


@dataclass(frozen=True, slots=True)
class OpenModelCallFact:
    """A model call of a model runner whose end the ledger does not have.

    `waits`: there, and nothing was sent, as its worker says.
    """

    step: int
    attempt_number: int
    since_reserved: float
    waits: bool = False


@dataclass(frozen=True, slots=True)
class StopFact:
    """A stop that covers the task, or one of its calls without an outcome. `since`: seconds before now."""

    stop: Stop
    since: float


@dataclass(frozen=True, slots=True)
class Facts:
    """The input of `explain`.

    `since_*` and `until_*`: seconds before and after now. `lease_seconds`, `workers` and `refusals` are None if the
    service that knows them did not answer. `lease_seconds` 0: the task has no claim. `waits_for`: the question or the
    event, as text. `until_start`: set only before the task's start time. `until_too_long`: set only if the task has a
    queue timeout. `error_class`: the FailureClass of a request that the model provider refused, or "" if unknown.
    `caps`: the quotas that the task's tenant has reached, as text; `running_cap`: the one of running tasks among
    them, or "". `starts_none`: that quota is 0. `pin`: the revision of its agent. `model_call`: the open call that
    outlives its worker. `failed_call`: the failure after which the model call is made again, or "".
    `refused_tools`: the tools whose definitions its model provider refused. `stop`: the one that is in its way.
    `lost_lease`: the newest lost claim, with its reason and what is known of its lease, or "".
    `at_most`: so many of its source may be live, and it waits in line for that; 0: it is not in line.
    """

    state: TaskState
    reason: str
    message: str
    attempt: int
    step: int
    queue: str
    loop: str
    owner: str
    epoch: int
    budget: Budget
    since_move: float
    since_entry: float
    until_deadline: float
    until_retry: float | None = None
    until_start: float | None = None
    until_too_long: float | None = None
    is_to_end: bool = False
    waits_for: str = ""
    until_answer: float | None = None
    lease_seconds: float | None = 0.0
    workers: tuple[WorkerFact, ...] | None = ()
    calls: tuple[CallFact, ...] = ()
    tools_answered: bool = True
    error_class: str = ""
    refusals: int | None = 0
    caps: tuple[str, ...] = ()
    running_cap: str = ""
    starts_none: bool = False
    priority: Priority = Priority.NORMAL
    pin: PinFact | None = None
    model_call: OpenModelCallFact | None = None
    failed_call: str = ""
    refused_tools: tuple[str, ...] = ()
    stop: StopFact | None = None
    lost_lease: str = ""
    at_most: int = 0


def obstacle_text(facts: Facts) -> str:
    """Returns what keeps all attached workers from a queued task; "": nothing that is known."""
    if facts.state is not TaskState.QUEUED or facts.workers is None or facts.at_most:
        return ""
    obstacle = _obstacle(facts, facts.workers)
    return "" if obstacle is None else obstacle.line


def explain(facts: Facts) -> list[str]:
    """Returns at most MAX_LINES lines: the state with its reason, the circumstances, and what the task needs."""
    lines = [_state(facts)]
    if facts.state not in TERMINAL:
        lines += _circumstances(facts)
    lines += _calls(facts)
    lines += _refused_tools(facts)
    lines.append(_budget(facts))
    if facts.lost_lease:
        lines.append(f"Its newest lost claim: {facts.lost_lease}")
    lines += _refusals(facts)
    lines.append(_what_it_needs(facts))
    return lines[:MAX_LINES]


def _state(facts: Facts) -> str:
    reason = REASONS.get(facts.reason, facts.reason)
    position = f"attempt {facts.attempt}{f', after step {facts.step}' if facts.step else ''}"
    line = f"{facts.state} for {span(facts.since_move)}, {position}"
    if facts.state is TaskState.RUNNING:
        return f"RUNNING on {facts.owner} for {span(facts.since_move)}"
    if facts.state in TERMINAL:
        line = f"Ended as {facts.state} {span(facts.since_move)} ago, {position}"
    if facts.state is TaskState.SUCCEEDED:
        return line
    # The message of TOOL_IN_DOUBT names the calls, which are listed below.
    message = "" if facts.reason == Reason.TOOL_IN_DOUBT and facts.calls else facts.message
    return f"{line}{f': {reason}' if reason else ''}{f' ({message})' if message else ''}"


def _circumstances(facts: Facts) -> Iterator[str]:
    if facts.is_to_end:
        yield "It has a pending ending: its worker or a coordinator will end it"
    if facts.stop is not None:
        stop = facts.stop.stop
        yield f"STOPPED for {span(facts.stop.since)} by {stop.stopped_by} ({stop.describe()}): {stop.reason}"
    match facts.state:
        case TaskState.RUNNING:
            yield f"Its newest entry is {span(facts.since_entry)} old (step {facts.step}); {_lease(facts)}"
        case TaskState.QUEUED if facts.until_start is not None:
            yield f"It cannot start before its start time, in {span(facts.until_start)}"
        case TaskState.QUEUED:
            yield _line(facts) if facts.at_most else _workers(facts)
            if facts.until_too_long is not None:
                yield f"Its queue timeout is in {span(facts.until_too_long)}"
        case TaskState.RETRY_SCHEDULED if facts.until_retry is not None:
            yield f"Its retry is due in {span(facts.until_retry)}"
        case state if state in WAITING and facts.waits_for:
            until = "" if facts.until_answer is None else f"; the wait ends in {span(facts.until_answer)}"
            yield f"It waits for {facts.waits_for}{until}"
    yield from _model_call(facts)
    yield from _quotas(facts)
    yield _deadline(facts)


def _line(facts: Facts) -> str:
    tasks = "1 task is" if facts.at_most == 1 else f"{facts.at_most} tasks are"
    return f"It waits in the line of its source, of which at most {tasks} live, or for the end of its debounce"


def _quotas(facts: Facts) -> Iterator[str]:
    caps = [cap for cap in facts.caps if not (facts.starts_none and cap == facts.running_cap)]
    if caps and facts.state not in WAITING:
        yield f"Its tenant has reached a quota ({', '.join(caps)}): new tasks and model calls may have to wait"
    if facts.starts_none and not (facts.stop is not None and facts.stop.stop.by_quota):
        yield "Its tenant's new work is stopped: the quota of running tasks is 0, so no task of the tenant starts"


def _deadline(facts: Facts) -> str:
    if facts.state is TaskState.WAITING_USER:  # the deadline moves by the time that the task waits for a person
        left_seconds = facts.until_deadline + facts.since_move
        return f"Its deadline stands still while it waits for a person; then {span(left_seconds)} are left"
    return f"Its deadline is in {span(facts.until_deadline)}" if facts.until_deadline > 0 else "Its deadline has passed"


def _lease(facts: Facts) -> str:
    if facts.lease_seconds is None:
        return "its lease is unknown, because no coordinator answers"
    if not facts.lease_seconds:
        return "its claim is lost: the ledger will queue it again"
    return f"its lease expires in {span(facts.lease_seconds)} without a renewal"


class _Obstacle(NamedTuple):
    """What keeps all attached workers from a queued task, and what removes it."""

    line: str
    cure: str


def _obstacle(facts: Facts, workers: Sequence[WorkerFact]) -> _Obstacle | None:
    serving = [worker for worker in workers if facts.queue in worker.queues and facts.loop in worker.loops]
    if not serving:
        return _no_worker_serves(facts, workers)
    served = f"queue {facts.queue} and {_loop(facts)}"
    serving = [worker for worker in serving if worker.takes_tenant]
    if not serving:
        return _Obstacle(
            f"No connected worker may take tasks of its tenant: the pools of all workers that serve {served} have "
            "other tenants",
            "a worker of a pool that has its tenant: start one, or add the tenant to a pool in the file of pools",
        )
    serving = [worker for worker in serving if not worker.priorities or facts.priority in worker.priorities]
    if not serving:
        name = facts.priority.name
        return _Obstacle(
            f"No worker that serves {served} takes tasks of priority {name}",
            f"a worker that takes priority {name}: start one whose TENURE_WORKER_PRIORITIES has it",
        )
    if all(worker.draining for worker in serving):
        return _Obstacle(
            f"All workers that serve {served} are draining", f"a new worker that serves {served}: start one"
        )
    return None


def _no_worker_serves(facts: Facts, workers: Sequence[WorkerFact]) -> _Obstacle:
    if facts.pin is not None and facts.pin.needs_build:
        needed = f"a worker of {_builds(facts.pin)} that serves queue {facts.queue}"
        return _Obstacle(_no_build(facts.pin, workers, facts), f"{needed}: start one; or tenure fork --revision N")
    others = len(workers)
    attached = (
        f"{others} other worker{'s are' if others > 1 else ' is'} attached" if others else "no worker is attached"
    )
    served = f"queue {facts.queue} and {_loop(facts)}"
    return _Obstacle(f"No worker serves {served}; {attached}", f"a new worker that serves {served}: start one")


def _workers(facts: Facts) -> str:
    if facts.workers is None:
        return "The workers are unknown, because no coordinator answers"
    if (obstacle := _obstacle(facts, facts.workers)) is not None:
        return obstacle.line
    ready = [worker.worker_id for worker in facts.workers if _obstacle(facts, [worker]) is None]
    return f"Workers that serve queue {facts.queue} and {_loop(facts)}: {_names(ready)}"


def _no_build(pin: PinFact, workers: Sequence[WorkerFact], facts: Facts) -> str:
    """Returns which build the task needs, and which builds the workers of its queue have instead."""
    plain = plain_loop(facts.loop)
    others = sorted({worker.build for worker in workers if facts.queue in worker.queues and plain in worker.loops})
    named = ", ".join(build or "none" for build in others[:_MAX_NAMES])
    attached = f"the workers with {_function(facts)} have: {named}" if others else f"no worker has {_function(facts)}"
    return f"It is pinned to {pin.reference}, which needs {_builds(pin)}: no attached worker has it; {attached}"


def _builds(pin: PinFact) -> str:
    if pin.builds is None:
        return "a build that is unknown, because the registry does not answer"
    return f"the build {' or '.join(pin.builds[:_MAX_NAMES])}"


def _function(facts: Facts) -> str:
    code = f"the agent or function {offered_function(facts.loop)}"
    return f"{code} and its tools that undo effects" if is_undo_loop(facts.loop) else code


def _model_call(facts: Facts) -> Iterator[str]:
    call = facts.model_call
    if call is not None and facts.state in {TaskState.QUEUED, TaskState.RUNNING}:
        which = f"step {call.step} (attempt {call.attempt_number}, reserved {span(call.since_reserved)} ago)"
        if facts.state is TaskState.QUEUED:
            stays = "stays open at the model runner: the next owner joins it"
        elif call.waits:
            stays = "waits at the model runner for the rate limit of its key: nothing was sent"
        else:
            stays = "has not ended"
        yield f"Its model call of {which} {stays}"
    if facts.failed_call and facts.state is TaskState.RUNNING:
        yield f"Its newest model call failed: {facts.failed_call}"


def _calls(facts: Facts) -> Iterator[str]:
    if not facts.calls:
        return
    lines = [
        f"{call.call_id} {call.tool} ({call.state_text})" if facts.tools_answered else f"{call.call_id} {call.tool}"
        for call in facts.calls
    ]
    unknown = "" if facts.tools_answered else "; their state is unknown, because the tool service does not answer"
    yield f"Calls without an outcome: {_names(lines)}{unknown}"


def _refused_tools(facts: Facts) -> Iterator[str]:
    if facts.refused_tools:
        yield (
            f"Its model is not shown these tools, because the provider refuses their definitions: "
            f"{_names(facts.refused_tools)} (tenure tasks entries shows the refusal)"
        )


def _budget(facts: Facts) -> str:
    budget = facts.budget
    is_busy = facts.reason == Reason.BUDGET_BUSY  # only then an operator needs to know what is reserved
    reserved = f", {budget.reserved_tokens:,} reserved" if is_busy and budget.reserved_tokens else ""
    tokens = f"Budget of its task tree: {budget.used_tokens:,} of {budget.max_tokens:,} tokens used{reserved}"
    if not budget.is_capped_in_money:
        return f"{tokens}{f'; cost {money_text(budget.used_nano_usd)}' if budget.used_nano_usd else ''}"
    reserved = f", {money_text(budget.reserved_nano_usd)} reserved" if is_busy and budget.reserved_nano_usd else ""
    return f"{tokens}; {money_text(budget.used_nano_usd)} of {usd(budget.max_nano_usd)} used{reserved}"


def _refusals(facts: Facts) -> Iterator[str]:
    if facts.refusals:
        yield f"Refused writes of stale workers: {facts.refusals} (tenure tasks refusals lists them)"
    elif facts.refusals is None:
        yield "Its refused writes are unknown, because the checkpoint service or the tool service does not answer"


def _what_it_needs(facts: Facts) -> str:
    if facts.state in TERMINAL:
        return "It needs nothing more" if facts.state is TaskState.SUCCEEDED else _what_continues_it(facts)
    if facts.is_to_end:
        return "It will end without help, within about a second while all services answer"
    if facts.stop is not None and facts.state not in WAITING:
        return f"It needs: the end of the stop: {facts.stop.stop.end_command}; or tenure cancel"
    needs = {
        TaskState.QUEUED: _needed_to_start(facts),
        TaskState.RUNNING: _needed_to_run(facts),
        TaskState.RETRY_SCHEDULED: _CORRECT_THE_ACCOUNT
        if facts.reason == Reason.MODEL_ACCOUNT_REFUSED
        else "time; tenure admin requeue queues it at once",
        TaskState.WAITING_USER: f"a person's resolution of the call: {RESOLVE_COMMANDS}; or tenure cancel"
        if facts.reason == Reason.TOOL_IN_DOUBT
        else "a person's grant: tenure resume --tokens N --usd X; or a refusal: tenure resume --deny"
        if facts.reason == Reason.BUDGET_REQUESTED
        else "a person: tenure resume --option continue, tenure tasks send for another way, or tenure cancel"
        if facts.reason == Reason.NO_PROGRESS
        else "a person: tenure resume, or tenure cancel",
        TaskState.WAITING_EXTERNAL: "the end of its last sub-agent (tenure tasks tree), or tenure cancel"
        if facts.reason == Reason.SUB_AGENTS_AWAITED
        else "the event: tenure tasks signal, or tenure cancel",
    }
    return f"It needs: {needs[facts.state]}"


_CORRECT_THE_ACCOUNT: Final = (
    "a valid key of the provider (of the model runner; without one, of the worker) or credit on its account: the task "
    "goes on by itself within minutes, or at once with tenure admin requeue"
)


def _what_continues_it(facts: Facts) -> str:
    """Returns advice about a task that ended without success. The advice must not lead to the same failure again."""
    if facts.reason in {Reason.TOKEN_LIMIT, Reason.MONEY_LIMIT}:
        return "Only an operator can continue it: tenure admin grant-budget adds budget"
    if facts.reason == Reason.STEP_LIMIT:
        return "Only an operator can continue it: tenure admin requeue --extra-steps N raises its step limit"
    if facts.reason == Reason.MODEL_UNPRICED:
        return (
            "A requeue would fail again until the ledger knows a price of its model: add it to the file of "
            "TENURE_CHECKPOINT_PRICES_FILE and restart the checkpoint service; then tenure admin requeue. Or submit it "
            "again with --no-max-cost"
        )
    if facts.reason == Reason.UNDO_INCOMPLETE:
        return "Its result says what failed. Remove the cause, then undo the same task again: tenure tasks undo TASK"
    if facts.reason == Reason.NO_PROGRESS:
        return (
            "Remove what makes its call fail, then tenure admin requeue; or tenure fork --message TEXT tells the agent "
            "what to do instead. With tenure submit --on-no-progress ask a person is asked before the end"
        )
    if facts.reason == Reason.MODEL_REJECTED:
        return _what_continues_after_refusal(facts.error_class)
    return "Only an operator can continue it: tenure admin requeue begins its next attempt"


def _what_continues_after_refusal(error_class: str) -> str:
    match error_class:
        case FailureClass.NOT_FOUND:
            return (
                "The model provider does not have its model, so a requeue would fail again: "
                "tenure fork --model NAME starts a new task from its history with another model"
            )
        case _:
            return (
                "A requeue would send the same request again: tenure fork --step N continues from an earlier step, "
                "tenure fork --model NAME with another model"
            )


def _needed_to_run(facts: Facts) -> str:
    if facts.model_call is not None:
        return "the end of its model call: another worker would join the same call; tenure cancel ends it"
    if any(call.settled_seconds is not None for call in facts.calls):
        return "time: Tenure learns the end of its call, or asks a person; tenure cancel ends it"
    if facts.failed_call:
        return "time: its worker makes the model call again within a minute; tenure cancel ends it"
    return "its worker to continue; tenure admin transfer moves it to another, tenure cancel ends it"


def _needed_to_start(facts: Facts) -> str:
    if facts.at_most:
        return "the end of another task of its source (tenure list --source KIND/ID), or tenure cancel"
    if facts.until_start is not None:
        return "time; tenure cancel ends it"
    if facts.workers is not None and (obstacle := _obstacle(facts, facts.workers)) is not None:
        return obstacle.cure
    if facts.starts_none:
        return "a higher quota of its tenant's running tasks, which is 0: tenure tenants limit --running-tasks N"
    if facts.running_cap:
        return (
            f"the end of a running task of its tenant, which has {facts.running_cap}; or a higher quota: "
            "tenure tenants limit --running-tasks N"
        )
    return "a worker with a free slot"


def _loop(facts: Facts) -> str:
    """Returns the loop, or the control function, that a worker must offer to run the task."""
    if not offered_function(facts.loop):
        return f"loop {facts.loop}"
    pinned = facts.pin is not None and facts.pin.needs_build
    return f"{_function(facts)} as {facts.pin.reference}" if facts.pin is not None and pinned else _function(facts)


def _names(names: Sequence[str]) -> str:
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def span(seconds: float) -> str:
    """Returns a duration for people: `3 s`, `4 min`, `2 h 5 min`, `3 days`."""
    rounded = max(0, round(seconds))
    if rounded < 120:
        return f"{rounded} s"
    if rounded < 7200:
        return f"{rounded // 60} min"
    if rounded < 172_800:
        minutes = rounded % 3600 // 60
        return f"{rounded // 3600} h{f' {minutes} min' if minutes else ''}"
    return f"{rounded // 86_400} days"
