"""Settles a call of unknown end: repeats it with its key, or asks the check of its tool, until there is an answer.

The record stays STARTED with its runner meanwhile, so other replicas join the call, and a takeover, a close and a drain
find it as any running call. The pauses hold no place in a lane. The rule of what comes next is
tenure/domain/settlement.py.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar

from services.tools.calls.effects import BEGINS_WITHIN_SECONDS, NeverBegan, PutOff, ToolEffect
from services.tools.calls.lanes import Lane
from services.tools.calls.runs import ANNOUNCE_SECONDS, RunningCall, StopReason, Superseded
from services.tools.calls.start_and_finish import StartMark, release_start, until_written
from services.tools.calls.stops import StopView
from services.tools.runners.liveness import Liveness
from services.tools.statements import QUERIES
from services.tools.tool import CallContext, RunnerStopped, Tool, ToolFailure, ToolInDoubt, ToolWork
from tenure.domain.argument_mapping import mapped_arguments
from tenure.domain.errors import TryLater
from tenure.domain.settlement import (
    HARMLESS,
    CheckFinding,
    SettlementPlan,
    Try,
    doubt_after,
    outcome_of_finding,
    read_check,
    unreadable,
)
from tenure.domain.stops import StopsInForce, stopped
from tenure.domain.tools import CheckWith, EffectClass, Outcome, OutcomeStatus
from tenure.runtime.failpoints import failpoint
from tenure.runtime.observability import metrics
from tenure.runtime.store.postgres import Pool, pool_connection

_log: Final = logging.getLogger(__name__)
_Result = TypeVar("_Result")
_LOOK_SECONDS: Final = 1.0
"""The pause while the fence has another claim than the record: its owner joins the call, or has ended the task."""

_LONGEST_ASKED_SECONDS: Final = 60.0
_ENDED: Final = "Its task ended before the end of the call was known."


class Checks(Protocol):
    """Finds the tools that say whether a call happened."""

    def pure_tool(self, name: str, tenant: str, arguments: dict[str, Any]) -> Tool | str:
        """Returns the PURE tool of a tenant that takes these arguments, or why there is none."""


class _TaskEnded(Exception):  # noqa: N818  a fact, not an error
    """The run was stopped because its task has ended."""


class _Stopped(Exception):  # noqa: N818  a fact, not an error
    """An operator stopped the run: the call runs again after the stop."""


class _Standing(NamedTuple):
    """`is_current`: a try may begin under the record's claim. `epoch`: of that claim. `stop_epoch`: of the stops."""

    is_current: bool
    epoch: int
    elapsed_seconds: float
    stop_epoch: int


@dataclass(slots=True)
class _Progress:
    """How far a settlement is. `began_at`: in the event loop's time. `last`: what the last try brought.

    `pause_seconds`: the shortest next pause.
    """

    began_at: float
    tries: int = 0
    checked_at_end: bool = False
    last: str = ""
    pause_seconds: float = 0.0

    @property
    def elapsed_seconds(self) -> float:
        return _now() - self.began_at


class Settler:
    """Settles the calls of one runner. `hold` keeps the asyncio tasks of effects that do not stop.

    `stopping`: set when the process is to end. Then it gives its calls up at once, and other replicas go on with them:
    a drain does not wait for an answer that may come in minutes.
    """

    def __init__(
        self,
        pool: Pool,
        liveness: Liveness,
        lanes: Mapping[str, Lane],
        hold: Callable[[asyncio.Task[Outcome]], None],
        stops: StopView,
        checks: Checks | None,
        stopping: asyncio.Event,
    ) -> None:
        self._pool, self._liveness, self._lanes, self._hold, self._checks = pool, liveness, lanes, hold, checks
        self._stops, self._stopping = stops, stopping

    async def settle(self, run: RunningCall, work: ToolWork, doubt: ToolInDoubt) -> Outcome:
        """Returns the outcome of a call of unknown end, or that of a call that may be repeated without harm.

        Raises ToolInDoubt when the call is in doubt, RunnerStopped when another replica goes on with it, Unavailable
        (STOPPED) when an operator stopped it, and Superseded when the record has a newer attempt.
        """
        definition = work.tool.definition
        # The class with which a lost attempt began counts, too: it was UNSAFE, whatever the tool is by now.
        effect_class = EffectClass.UNSAFE if run.only_settles else definition.effect_class
        plan = SettlementPlan.of(effect_class, definition.settlement)
        if plan.is_empty:
            raise doubt
        run.sent_before = True
        metrics.count("tenure_calls_settled_total")
        announcing = asyncio.create_task(self._announce(run), name=f"announce {run.name}")
        try:
            return await self._settle(run, work, doubt, plan)
        except _TaskEnded:
            raise ToolInDoubt(f"{doubt.message} {_ENDED}") from None
        except _Stopped:
            await self._release(run)
            assert run.stopped_by is not None, "StopView.stop_covered sets it"
            raise stopped(run.stopped_by, may_have_begun=True) from None
        except RunnerStopped:
            if run.stop is StopReason.DRAINED:
                await self._release(run)
            raise
        finally:
            announcing.cancel()

    async def _settle(self, run: RunningCall, work: ToolWork, doubt: ToolInDoubt, plan: SettlementPlan) -> Outcome:
        standing = await self._interruptible(run, self._stand(run))
        progress = _Progress(_now() - standing.elapsed_seconds)
        await failpoint("tools.after_settling")
        while True:
            pause = plan.pause_seconds(progress.elapsed_seconds, progress.tries, random.random())
            await self._interruptible(run, asyncio.sleep(max(pause, progress.pause_seconds)))
            progress.pause_seconds = 0.0
            match plan.next_try(progress.elapsed_seconds, checked_at_end=progress.checked_at_end):
                case Try.REPEAT:
                    outcome = await self._repeat(run, work, progress)
                case Try.CHECK:
                    is_late = progress.elapsed_seconds >= plan.seconds
                    outcome = await self._check(run, work, progress, is_late=is_late)
                case None:
                    return _given_up(run, work, doubt, progress)
            if outcome is not None:
                return outcome

    async def _announce(self, run: RunningCall) -> None:
        """Tells the listeners again and again that the call is being settled, until the process is to end."""
        while not self._stopping.is_set():
            run.announce_settling()
            with suppress(TimeoutError):
                async with asyncio.timeout(ANNOUNCE_SECONDS):
                    await self._stopping.wait()
        run.request_stop(StopReason.DRAINED)

    async def _repeat(self, run: RunningCall, work: ToolWork, progress: _Progress) -> Outcome | None:
        """Sends the call again, with its key. None: its end is still unknown."""
        async with _Place(self, run, work.tool):
            may_begin = await self._may_begin(run, progress)
            if may_begin is None:
                return None
            progress.tries += 1
            await failpoint("tools.before_repeat")
            try:
                outcome = await ToolEffect(run, work, may_begin).carry_out(self._hold)
            except ToolInDoubt as in_doubt:
                progress.last = in_doubt.message
            except PutOff as put_off:
                progress.last = str(put_off.refusal)
                progress.pause_seconds = min(put_off.refusal.retry_after_seconds or 0.0, _LONGEST_ASKED_SECONDS)
            except NeverBegan:
                self._check_stop(run)
            else:
                if outcome.status is OutcomeStatus.CANCELLED:  # it was stopped, which says nothing of the call
                    raise _TaskEnded
                return outcome
        return None

    async def _check(self, run: RunningCall, work: ToolWork, progress: _Progress, *, is_late: bool) -> Outcome | None:
        """Asks the check. None: it does not know, the call did not happen as far as it knows, or it may not ask now."""
        progress.checked_at_end = is_late  # also if it may not ask: a newer owner may never join
        settlement = work.tool.definition.settlement
        assert settlement is not None
        assert settlement.check_with is not None, "a plan with checks has one"
        check = self._find_check(run, work, settlement.check_with)
        if isinstance(check, CheckFinding):
            progress.tries, progress.last = progress.tries + 1, check.text
            return None
        async with _Place(self, run, check.tool):
            if await self._may_begin(run, progress) is None:
                return None
            progress.tries += 1
            await failpoint("tools.before_check")
            finding = await self._interruptible(run, _ask(run, check))
        progress.last = finding.text
        return outcome_of_finding(finding, run.call_attempt)

    def _find_check(self, run: RunningCall, work: ToolWork, declared: CheckWith) -> ToolWork | CheckFinding:
        if self._checks is None:
            return unreadable(declared.tool, "this service calls no checks")
        values = {"arguments": work.arguments, "key": run.idempotency_key, "outcome": None}
        try:
            arguments = mapped_arguments(json.loads(declared.arguments_json), values)
        except LookupError as missing:
            return unreadable(declared.tool, f"its arguments cannot be made: {missing}")
        tool = self._checks.pure_tool(declared.tool, run.request.claims.tenant, arguments)
        return unreadable(declared.tool, tool) if isinstance(tool, str) else ToolWork(tool, arguments, work.token)

    async def _may_begin(self, run: RunningCall, progress: _Progress) -> _MayBegin | None:
        """Asks the record and the fence whether a try may begin now. None: not now.

        A newer owner has joined the call: it runs the call under its own claim, because the other side may refuse the
        older one.
        """
        try:
            may_begin = _MayBegin(self._liveness)
        except TryLater:  # the life of this runner is over
            raise RunnerStopped from None
        standing = await self._interruptible(run, self._stand(run))
        in_force = self._stops.in_force
        if standing.stop_epoch != in_force.epoch:
            in_force = await self._interruptible(run, self._read_stops())
        # The part of this replica that read the stops may not have cancelled the run yet.
        self._stops.stop_covered(run, in_force)
        self._check_stop(run)
        progress.began_at = _now() - standing.elapsed_seconds
        if standing.epoch > run.request.claims.epoch:
            await self._release(run)
            raise Superseded
        if standing.is_current:
            return may_begin
        progress.pause_seconds = _LOOK_SECONDS
        return None

    async def _stand(self, run: RunningCall) -> _Standing:
        """Notes the begin of the settlement in the record, once, and reads how the call stands."""

        async def write() -> _Standing:
            parameters = {
                "task_id": run.key.task_id,
                "call_id": run.key.call_id,
                "call_attempt": run.call_attempt,
                "runner_id": self._liveness.runner_id,
            }
            async with pool_connection(self._pool) as postgres:
                row = await (await postgres.execute(QUERIES.go_on_settling, parameters)).fetchone()
            if row is None:
                raise Superseded
            return _Standing(*row)

        return await until_written(write)

    async def _read_stops(self) -> StopsInForce:
        """Reads the newest stops: no try begins after the answer of a stop at another replica."""

        async def read() -> StopsInForce:
            async with pool_connection(self._pool) as postgres:
                return await self._stops.refresh(postgres)

        return await until_written(read)

    async def _release(self, run: RunningCall) -> None:
        """Lets another attempt go on at once, for as long as it takes: a mark that stays would make others wait.

        Raises Superseded when the call has a newer attempt, an outcome or is in doubt.
        """
        is_released = await until_written(lambda: release_start(self._pool, StartMark(run.key, run.call_attempt)))
        run.marked = False
        if not is_released:
            raise Superseded

    async def _interruptible(self, run: RunningCall, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Awaits a part of the settlement, which a stop of the run ends."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        if run.stop is not None:
            task.cancel()
        run.effect = task
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
        self._check_stop(run)
        result: _Result = task.result()
        return result

    def _check_stop(self, run: RunningCall) -> None:
        """Raises what a stop of the run means for the call."""
        if run.stop in {StopReason.LAPSED, StopReason.DRAINED}:
            raise RunnerStopped
        if run.stop is StopReason.SUPERSEDED:
            raise Superseded
        if run.stop is StopReason.STOPPED:
            raise _Stopped
        if run.stop is not None:
            raise _TaskEnded

    async def take_place(self, run: RunningCall, tool: Tool) -> None:
        """Waits for a place in the lane of a tool."""
        lane, tenant = self._lanes[tool.lane], run.request.claims.tenant
        taking = lane.acquire(tenant)
        try:
            await self._interruptible(run, taking)
        except BaseException:
            if run.effect is not None and run.effect.done() and not run.effect.cancelled():
                lane.release(tenant)  # it got its place in the moment of the stop
            raise

    def give_place(self, run: RunningCall, tool: Tool) -> None:
        """Gives the place back."""
        self._lanes[tool.lane].release(run.request.claims.tenant)


class _Place:
    """A place in the lane of a tool, for one try. Use it with `async with`."""

    def __init__(self, settler: Settler, run: RunningCall, tool: Tool) -> None:
        self._settler, self._run, self._tool = settler, run, tool

    async def __aenter__(self) -> None:
        await self._settler.take_place(self._run, self._tool)

    async def __aexit__(self, *_: object) -> None:
        self._settler.give_place(self._run, self._tool)


class _MayBegin:
    """The permission to begin a try, from just before the record was read. See `effects.MayBegin`."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness, self._runner_id = liveness, liveness.runner_id
        self._before = _now() + BEGINS_WITHIN_SECONDS

    def in_time(self) -> bool:
        return _now() < self._before and self.at_all()

    def at_all(self) -> bool:
        return self._liveness.trusts(self._runner_id)


async def _ask(run: RunningCall, check: ToolWork) -> CheckFinding:
    """Calls a check and reads its answer. It has a key of its own, because the call's key stands for another answer."""
    tool, claims = check.tool, run.request.claims
    context = CallContext(
        tenant=claims.tenant,
        task_id=claims.task_id,
        call_id=run.key.call_id,
        idempotency_key=f"{run.idempotency_key}/check",
        epoch=claims.epoch,
        emit=lambda _text: None,
        token=check.token,
        output_limit_bytes=tool.definition.output_limit_bytes,
        timeout_seconds=tool.definition.timeout_seconds,
    )
    try:
        async with asyncio.timeout(tool.definition.timeout_seconds + tool.guard_seconds):
            answer = await tool.run(context, check.arguments)
    except (ToolFailure, ToolInDoubt, TryLater) as failure:
        return unreadable(tool.name, failure.message)
    except TimeoutError:
        return unreadable(tool.name, "it gave no answer in time")
    except Exception as error:  # noqa: BLE001  a fault of the check must not put an end to the settlement
        _log.exception("the check %s crashed", tool.name)
        return unreadable(tool.name, f"it crashed with {type(error).__name__}")
    return read_check(tool.name, Outcome(answer.status, answer.content, truncated=answer.truncated))


def _given_up(run: RunningCall, work: ToolWork, doubt: ToolInDoubt, progress: _Progress) -> Outcome:
    """Returns the outcome of a call of unknown end that may be repeated without harm. Raises ToolInDoubt for others."""
    message = doubt_after(doubt.message, progress.last, progress.elapsed_seconds, progress.tries)
    if run.only_settles or work.tool.definition.effect_class is not EffectClass.IDEMPOTENT:
        raise ToolInDoubt(message)
    return Outcome(doubt.status, f"{message} {HARMLESS}", detail=doubt.detail, call_attempt=run.call_attempt)


def _now() -> float:
    return asyncio.get_running_loop().time()
