"""For each mutation of ledger and tools, the calls whose history differs when the guard is missing.

With all guards in place each is a lawful run: a stale caller is refused, and the task goes its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from uuid import uuid4

from tenure.domain.errors import TenureError
from tenure.domain.states import TaskState
from tenure.domain.tools import NOT_RUN
from tenure.runtime.rpc.client import open_channel
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2, tool_pb2
from tenure.v1.tool_service_pb2_grpc import ToolServiceStub
from tests.fault import resolution_scenarios
from tests.fault.mutation_bench import OWN_TOOL, REPEATABLE_TOOL, TOOL, Arena
from tests.support.fix_checkpoint import (
    Owner,
    answer,
    reserve,
    words,
)
from tests.support.fix_tools import appear
from tests.support.patience import CALL_SECONDS

REFUSED = suppress(TenureError)
"""What a stale caller hears. With the guard gone it hears nothing, and what follows may be refused instead."""

QUEUED = pb.Transition(to_state=task_pb2.TASK_STATE_QUEUED, reason="WORKER_DRAINED")


async def a_fenced_owner_commits(arena: Arena) -> None:
    task_id = await arena.task()
    old = await arena.ledger.claim(task_id, holder="worker-1")
    new = await arena.ledger.claim(task_id, holder="worker-2")
    with REFUSED:
        await old.commit(words("late"))
    with REFUSED:
        await new.end()


async def another_claim_of_the_same_epoch_commits(arena: Arena) -> None:
    owner = await arena.ledger.claim(await arena.task())
    owner.token, owner.claims = arena.ledger.sign(owner.task.task_id, owner.claims.epoch, "a-restored-etcd-made-this")
    with REFUSED:
        await owner.commit(words("of another life"))


async def a_lower_epoch_opens(arena: Arena) -> None:
    task_id = await arena.task()
    before = await arena.ledger.grant(task_id, holder="worker-1")
    new = await arena.ledger.claim(task_id, holder="worker-2")
    with REFUSED:
        await (await arena.ledger.open(*before)).commit(words("from the past"))
    with REFUSED:
        await new.end()


async def a_claim_that_was_given_back_opens_again(arena: Arena) -> None:
    owner = await arena.ledger.claim(await arena.task())
    await owner.commit(transition=QUEUED)
    with REFUSED:
        await (await arena.ledger.open(owner.token, owner.claims)).end()


async def a_former_owner_commits_after_the_open(arena: Arena) -> None:
    task_id = await arena.task()
    old = await arena.ledger.claim(task_id, holder="worker-1")
    new = await arena.ledger.claim(task_id, holder="worker-2")
    with REFUSED:
        await old.commit(words("unseen by the new owner"))
    with REFUSED:
        await new.end()


async def an_unregistered_claim_opens(arena: Arena) -> None:
    task_id = await arena.task()
    registered = await arena.ledger.claim(task_id, holder="worker-1")
    with REFUSED:
        unknown = arena.ledger.sign(task_id, registered.claims.epoch + 1, "nobody-registered-this", "worker-2")
        await (await arena.ledger.open(*unknown)).end()


async def a_claim_from_before_the_line_opens(arena: Arena) -> None:
    source = task_pb2.Source(kind=task_pb2.SOURCE_KIND_CONTROL, source_id=str(uuid4()), at_most=1)
    first = await arena.admitted_task(source)
    granted = await arena.ledger.grant(first, holder="worker-1")
    await arena.ledger.cancel(first)
    second = await arena.ledger.claim(await arena.admitted_task(source), holder="worker-2")
    await arena.requeue(first)
    with REFUSED:
        await (await arena.ledger.open(*granted)).end(task_pb2.TASK_STATE_FAILED)
    await second.end(task_pb2.TASK_STATE_FAILED)


async def a_commit_is_sent_twice(arena: Arena) -> None:
    owner = await arena.ledger.claim(await arena.task())
    request = owner.request(words("once"))
    await owner.send(request)
    await owner.send(request)
    with REFUSED:
        await owner.end()


async def an_old_commit_is_delivered_again(arena: Arena) -> None:
    owner = await arena.ledger.claim(await arena.task())
    request = owner.request(words("once"))
    await owner.send(request)
    await owner.commit(words("and then this"))
    with REFUSED:
        await owner.replica.stub.Commit(request, timeout=CALL_SECONDS)


async def the_loss_of_an_older_claim_is_reported_late(arena: Arena) -> None:
    task_id = await arena.task()
    old = await arena.ledger.claim(task_id, holder="worker-1")
    await arena.ledger.requeue(old)
    new = await arena.ledger.claim(task_id, holder="worker-2")
    await arena.ledger.requeue(old)
    with REFUSED:
        await new.end()


async def an_owner_ends_with_an_open_call(arena: Arena) -> None:
    owner = await arena.owner_with_a_call()
    with REFUSED:
        await owner.end(task_pb2.TASK_STATE_FAILED)


async def a_cancelled_owner_asks_for_another_model_call(arena: Arena) -> None:
    owner = await arena.ledger.claim(await arena.task())
    await arena.ledger.cancel(owner.task.task_id)
    await owner.commit(reserve=reserve())
    await owner.end(task_pb2.TASK_STATE_CANCELLED)


async def a_cancelled_owner_succeeds(arena: Arena) -> None:
    owner = await arena.ledger.claim(await arena.task())
    await arena.ledger.cancel(owner.task.task_id)
    await owner.end()


async def a_fenced_owner_calls_its_tool(arena: Arena, tool: str = TOOL) -> None:
    old = await arena.owner_with_a_call(tool=tool)
    new = await arena.ledger.claim(old.task.task_id, holder="worker-2")
    await arena.fence(new)
    with REFUSED:
        await arena.execute(old, tool=tool)
    with REFUSED:
        await arena.end(new, await arena.execute(new, tool=tool))


async def a_fenced_owner_calls_a_repeatable_tool(arena: Arena) -> None:
    await a_fenced_owner_calls_its_tool(arena, REPEATABLE_TOOL)


async def ended_by_another_caller(arena: Arena, owner: Owner) -> None:
    """As a coordinator does it: a claim, the tools' fence closed, one commit."""
    other = await arena.ledger.claim(owner.task.task_id, holder="coordinator-1")
    await arena.fence(other, close=True)
    await arena.end(other, NOT_RUN, TaskState.FAILED)


async def a_call_comes_after_the_end(arena: Arena) -> None:
    owner = await arena.owner_with_a_call()
    await ended_by_another_caller(arena, owner)
    with REFUSED:
        await arena.execute(owner)


async def a_call_was_accepted_before_the_end(arena: Arena) -> None:
    owner = await arena.owner_with_a_call()
    call = asyncio.create_task(arena.execute(owner))
    await appear(arena.folder / "accepted")
    await ended_by_another_caller(arena, owner)
    (arena.folder / "go-on").touch()
    with REFUSED:
        await call


async def a_call_was_accepted_before_it_was_taken_over(arena: Arena) -> None:
    owner = await arena.owner_with_a_call()
    call = asyncio.create_task(arena.execute(owner))
    await appear(arena.folder / "accepted")
    new = await arena.ledger.claim(owner.task.task_id, holder="worker-2")
    async with arena.another_replica() as replica:
        outcome = await arena.execute(new, replica)
    (arena.folder / "go-on").touch()
    with REFUSED:
        await call
    await arena.end(new, outcome)


async def a_call_is_asked_for_again(arena: Arena) -> None:
    owner = await arena.owner_with_a_call()
    first = await arena.execute(owner)
    await arena.execute(owner)
    await arena.end(owner, first)


async def a_running_call_is_asked_for_again(arena: Arena) -> None:
    owner = await arena.owner_with_a_call(delay_ms=500)
    first = asyncio.create_task(arena.execute(owner))
    await arena.stands(owner, tool_pb2.CALL_STATE_STARTED)
    outcome = await arena.execute(owner)
    with REFUSED:
        await first
    await arena.end(owner, outcome)


async def the_call_of_a_dead_runner_is_asked_for_again(arena: Arena) -> None:
    owner = await arena.owner_with_a_call()
    async with arena.another_replica("tools.after_effect=kill9") as dying:
        with REFUSED:
            await arena.execute(owner, dying)
    await arena.end(owner, await arena.execute(owner))


async def the_keyed_call_of_a_dead_runner_is_asked_for_again(arena: Arena) -> None:
    """As the settlement of a call sends it again: the records of effects know the call by its key."""
    owner = await arena.owner_with_a_call(tool=REPEATABLE_TOOL)
    async with arena.another_replica("tools.after_effect=kill9") as dying:
        with REFUSED:
            await arena.execute(owner, dying, tool=REPEATABLE_TOOL)
    await arena.end(owner, await arena.execute(owner, tool=REPEATABLE_TOOL))


async def a_lost_workers_own_call_is_executed_again(arena: Arena) -> None:
    """The worker had the effect and was lost; the next owner may not have it again."""
    lost = await arena.owner_with_a_call(tool=OWN_TOOL)
    assert await arena.run_own(lost, ends=False) is None
    owner = await arena.ledger.claim(lost.task.task_id, holder="worker-2")
    outcome = await arena.run_own(owner, ends=True)
    assert outcome is not None
    await arena.end(owner, outcome)


async def an_effect_is_planned_twice(arena: Arena) -> None:
    """The model asks twice for the letter of one file, under two call ids."""
    owner = await arena.owner_with_a_call(tool=OWN_TOOL, calls=2)
    key = tool_pb2.EffectKey(arguments=["/file"])
    for call_id in ("1.0", "1.1"):
        assert await arena.run_own(owner, ends=True, call_id=call_id, effect_key=key) is not None


async def an_effect_is_planned_again_after_a_failed_undo(arena: Arena) -> None:
    owner = await arena.owner_with_a_call(tool=OWN_TOOL, calls=2)
    key, arguments = tool_pb2.EffectKey(arguments=["/file"]), arena.arguments_json
    assert await arena.run_own(owner, ends=True, call_id="1.0", effect_key=key) is not None
    undo, undone = await arena.owner_with_a_call(tool=OWN_TOOL), f"{owner.task.task_id}/1.0"
    failed = tool_pb2.OUTCOME_STATUS_FAILED
    assert await arena.run_own(undo, ends=True, undoes=undone, status=failed) is not None
    arena.arguments_json = arguments
    assert await arena.run_own(owner, ends=True, call_id="1.1", effect_key=key) is not None


async def a_family(arena: Arena, max_tokens: int) -> tuple[Owner, Owner]:
    """A root and its child, each under an owner: both draw on one budget, the child under a smaller cap of its own."""
    tasks = [
        await arena.ledger.create(limits=task_pb2.Limits(max_tokens=most)) for most in (max_tokens, max_tokens - 200)
    ]
    root_id, child_id = (task.task_id for task in tasks)
    arena.task_ids += [root_id, child_id]
    tie = "update ledger.tasks set root_task_id = %s, own_max_tokens = %s where task_id = %s"
    await arena.ledger.query(tie, root_id, max_tokens - 200, child_id)
    return await arena.ledger.claim(root_id), await arena.ledger.claim(child_id)


async def a_worker_gives_its_own_call_back(arena: Arena) -> None:
    owner = await arena.ledger.claim(await arena.task(), joins=True)
    await owner.commit(reserve=reserve())
    await owner.commit(transition=QUEUED)
    with REFUSED:
        await (await arena.ledger.claim(owner.task.task_id, "worker-2")).end()


async def a_worker_leaves_a_call_of_a_runner(arena: Arena) -> None:
    owner = await arena.ledger.claim(await arena.task(), joins=True)
    await owner.commit(reserve=reserve(outlives=True))
    await owner.commit(transition=QUEUED)
    joiner = await arena.ledger.claim(owner.task.task_id, "worker-2", joins=True)
    with REFUSED:
        await joiner.commit(answer())
    with REFUSED:
        await joiner.end()


async def two_of_a_tree_reserve_what_fits_once(arena: Arena) -> None:
    root, child = await a_family(arena, 1_000)
    await root.commit(reserve=reserve(input_tokens=500, output=100))
    await child.commit(reserve=reserve(input_tokens=500, output=100))
    for owner in (root, child):
        await owner.end()


async def a_child_asks_for_more_than_its_own_cap(arena: Arena) -> None:
    root, child = await a_family(arena, 1_000)
    await child.commit(reserve=reserve(input_tokens=850, output=100))
    for owner in (root, child):
        await owner.end()


async def a_call_is_answered(arena: Arena) -> None:
    owner = await arena.ledger.claim(await arena.task())
    await owner.commit(reserve=reserve())
    await owner.commit(answer())
    await owner.end()


async def a_task_is_undone_twice(arena: Arena) -> None:
    undo = tool_pb2.Compensation(tool="list_files", arguments_json="{}")
    defined = tool_pb2.ToolDefinition(
        name=TOOL, input_schema_json="{}", effect_class=tool_pb2.EFFECT_CLASS_UNSAFE, compensation=undo
    )
    owner = await arena.owner_with_a_call(0, TOOL, defined)
    await arena.end(owner, await arena.execute(owner))
    for _ in range(2):
        with REFUSED:
            await arena.undo(owner.task.task_id)


async def a_bound_is_used_twice(arena: Arena) -> None:
    """The model asks twice for a call of which one may run."""
    async with arena.bounded(1):
        owner = await arena.owner_with_a_call(calls=2)
        for call_id in ("1.0", "1.1"):
            await arena.execute(owner, call_id=call_id)


async def two_replicas_read_a_bound(arena: Arena) -> None:
    """One of them has read the counter and waits; the other one has its call meanwhile, or waits for the lock."""
    async with arena.bounded(1):
        first = await arena.owner_with_a_call()
        other = await arena.start_tools("", alike=True)
        async with open_channel(other.address) as channel:
            calls = [asyncio.create_task(arena.execute(first))]
            await appear(arena.folder / "accepted")
            second = await arena.owner_with_a_call()
            calls.append(asyncio.create_task(arena.execute(second, ToolServiceStub(channel))))
            await arena.done_or_blocked(calls[1])
            (arena.folder / "go-on").touch()
            await asyncio.gather(*calls)


async def a_stopped_tool_is_called(arena: Arena) -> None:
    owner = await arena.owner_with_a_call()
    await arena.stop()
    with REFUSED:
        await arena.execute(owner)
    await arena.resume()


async def a_stop_comes_while_a_call_is_accepted(arena: Arena) -> None:
    """The accept has read the stops and waits. A stop of another replica waits for it, or answers at once."""
    async with arena.bounded(5):
        owner = await arena.owner_with_a_call()
        other = await arena.start_tools("", alike=True)
        async with open_channel(other.address) as channel:
            call = asyncio.create_task(arena.execute(owner))
            await appear(arena.folder / "accepted")
            stopping = asyncio.create_task(arena.stop(ToolServiceStub(channel)))
            await asyncio.wait([stopping], timeout=1.0)
            (arena.folder / "go-on").touch()
            await stopping
            with REFUSED:
                await call
        await arena.resume()


SCENARIOS: dict[str, Callable[[Arena], Awaitable[None]]] = {
    **resolution_scenarios.SCENARIOS,
    "ledger_fence": a_fenced_owner_commits,
    "ledger_claim_id": another_claim_of_the_same_epoch_commits,
    "open_lower_epoch": a_lower_epoch_opens,
    "open_same_claim_later": a_claim_that_was_given_back_opens_again,
    "open_raises_the_fence": a_former_owner_commits_after_the_open,
    "registered_grants": an_unregistered_claim_opens,
    "line_at_open": a_claim_from_before_the_line_opens,
    "commit_repeat": a_commit_is_sent_twice,
    "commit_number": an_old_commit_is_delivered_again,
    "requeue_of_the_seen_claim": the_loss_of_an_older_claim_is_reported_late,
    "end_with_open_calls": an_owner_ends_with_an_open_call,
    "end_stops_the_model": a_cancelled_owner_asks_for_another_model_call,
    "cancel_wins": a_cancelled_owner_succeeds,
    "reserve_sees_siblings": two_of_a_tree_reserve_what_fits_once,
    "reserve_sees_own_cap": a_child_asks_for_more_than_its_own_cap,
    "settle_gives_back": a_call_is_answered,
    "settle_counts_use": a_call_is_answered,
    "calls_end_with_their_worker": a_worker_gives_its_own_call_back,
    "joined_calls_stay_open": a_worker_leaves_a_call_of_a_runner,
    "undo_right": a_task_is_undone_twice,
    "tool_fence": a_fenced_owner_calls_its_tool,
    "tool_fence_of_new_calls": a_fenced_owner_calls_a_repeatable_tool,
    "tool_fence_closes": a_call_comes_after_the_end,
    "call_off": a_call_was_accepted_before_the_end,
    "call_started": a_call_was_accepted_before_it_was_taken_over,
    "call_record": a_call_is_asked_for_again,
    "call_joined": a_running_call_is_asked_for_again,
    "own_call_of_lost_worker": a_lost_workers_own_call_is_executed_again,
    "call_in_doubt": the_call_of_a_dead_runner_is_asked_for_again,
    "effect_key": an_effect_is_planned_twice,
    "undone_key": an_effect_is_planned_again_after_a_failed_undo,
    "bound_counted": a_bound_is_used_twice,
    "bound_locked": two_replicas_read_a_bound,
    "stop_covers": a_stopped_tool_is_called,
    "stop_waits": a_stop_comes_while_a_call_is_accepted,
    "repeated_with_its_key": the_keyed_call_of_a_dead_runner_is_asked_for_again,
}
HELD = {"tools": "tools.after_accept=touch({folder}/accepted)->wait({folder}/go-on)"}
BOUNDS_READ = {"tools": "tools.bounds_locked=touch({folder}/accepted)->wait({folder}/go-on)"}
FAILPOINTS = {
    "call_started": HELD,
    "call_off": HELD,
    "bound_locked": BOUNDS_READ,
    "stop_waits": BOUNDS_READ,
    **resolution_scenarios.FAILPOINTS,
}
