"""Lists of tasks, in pages, each by an index: of waits, what has to be answered soonest comes first."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from services.checkpoint import lists
from services.checkpoint.lists import filter_parameters
from services.checkpoint.queries import LISTS
from tenure.domain.errors import InvalidRequest
from tenure.runtime.store.postgres import BoundedConnection, send_int8
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tests.conformance.test_ledger_waits import waiting
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, until_a_session_waits_for_a_lock

BY_DEADLINE = task_pb2.TASK_ORDER_WAIT_DEADLINE
IN_DOUBT = pb.Transition(to_state=task_pb2.TASK_STATE_WAITING_USER, reason="TOOL_IN_DOUBT")


async def listed(replica: Checkpoint, page_size: int = 0, **wanted: Any) -> list[list[str]]:
    """All pages."""
    pages, token = [], ""
    while True:
        request = tasks_pb.ListTasksRequest(
            filter=task_pb2.TaskFilter(**wanted), order=BY_DEADLINE, page_size=page_size, page_token=token
        )
        page = await replica.stub.ListTasks(request, timeout=TIMEOUT_SECONDS)
        pages.append([task.task_id for task in page.tasks])
        token = page.next_page_token
        if not token:
            return pages


async def test_the_soonest_deadline_is_listed_first(replica: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    await replica.create()
    doubtful = await replica.claim((await replica.create()).task_id)
    await doubtful.commit(transition=IN_DOUBT)
    late, soon, sooner = [
        (await waiting(replica, timeout_seconds=seconds, labels={"n": str(seconds)})).task_id
        for seconds in (9000, 600, 60)
    ]
    in_order = [sooner, soon, late, doubtful.task.task_id]
    assert await listed(replica) == [in_order]
    assert await listed(replica, page_size=3) == [in_order[:3], in_order[3:]]
    assert [one for page in await listed(replica, page_size=1) for one in page] == in_order
    assert await listed(replica, labels={"n": "600"}) == [[soon]]
    assert await listed(replica, states=[task_pb2.TASK_STATE_WAITING_EXTERNAL]) == [[]]
    await replica.cancel(sooner)
    assert await listed(replica) == [in_order[1:]]
    monkeypatch.setattr(lists, "MOST_READ", 1)
    assert await listed(replica, labels={"n": "9000"}) == [[], [late], [], []], "a page reads no more than it may"


async def test_an_unknown_order_is_refused(replica: Checkpoint) -> None:
    with pytest.raises(InvalidRequest):
        await replica.stub.ListTasks(tasks_pb.ListTasksRequest(order=cast("Any", 9)), timeout=TIMEOUT_SECONDS)


async def test_a_list_continues_after_a_page_of_pruned_tasks(replica: Checkpoint) -> None:
    """The tasks of the page are deleted after their ids were read, and before the tasks are."""
    oldest, *pruned = [(await replica.create()).task_id for _ in range(3)]
    for task_id in pruned:
        await replica.cancel(task_id)
    request = tasks_pb.ListTasksRequest(page_size=2)
    async with await BoundedConnection.connect(replica.dsn) as postgres:
        await postgres.execute("lock table ledger.budgets in access exclusive mode")  # the ids are read without it
        listing = asyncio.ensure_future(replica.stub.ListTasks(request, timeout=TIMEOUT_SECONDS))
        await until_a_session_waits_for_a_lock(replica)
        await postgres.execute("delete from ledger.tasks where task_id = any(%s::uuid[])", (pruned,))
    page = await listing
    assert list(page.tasks) == []
    request.page_token = page.next_page_token
    assert request.page_token
    rest = await replica.stub.ListTasks(request, timeout=TIMEOUT_SECONDS)
    assert ([task.task_id for task in rest.tasks], rest.next_page_token) == ([oldest], "")


NOBODY = "00000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize(
    ("statement", "index", "place"),
    [
        (LISTS.list_waits, "tasks_waits", "-infinity"),
        (LISTS.list_tasks, "tasks_newest", "infinity"),
        (LISTS.list_forks, "tasks_forks", "infinity"),
        (LISTS.list_source_kind, "tasks_source_kind", "infinity"),
        (LISTS.list_source, "tasks_source", "infinity"),
        (LISTS.list_source_run, "tasks_source_run", "infinity"),
        (LISTS.list_agent, "tasks_agent", "infinity"),
        (LISTS.list_states, "tasks_states", "infinity"),
        (LISTS.list_reasons, "tasks_states", "infinity"),
    ],
    ids=[
        *("list_waits", "list_tasks", "list_forks", "list_source_kind", "list_source", "list_source_run"),
        *("list_agent", "list_states", "list_reasons"),
    ],
)
async def test_each_list_comes_in_the_order_of_its_index(
    replica: Checkpoint, statement: Any, index: str, place: str
) -> None:
    await waiting(replica)
    parameters = filter_parameters(replica.tenant, task_pb2.TaskFilter(states=[task_pb2.TASK_STATE_WAITING_USER])) | {
        "place": place,
        "place_task_id": NOBODY,
        "page_size": 10,
        "most_read": 100,
        "reasons": ["APPROVAL_REQUESTED"] if statement == LISTS.list_reasons else [],
        "agent": "support" if statement == LISTS.list_agent else "",
        "forked_from_task_id": NOBODY if statement == LISTS.list_forks else "",
        **dict.fromkeys(("source_kind", "source_id", "source_run_id"), "MANUAL" if "source" in index else ""),
    }
    async with await BoundedConnection.connect(replica.dsn, autocommit=True) as postgres:
        await postgres.execute("set search_path to ledger")
        await postgres.execute("set enable_seqscan to off")  # as in the service
        send_int8(postgres)
        plan = await (await postgres.execute(b"explain " + statement, parameters)).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert f"Index Scan using {index}" in text, text
    of_states = text[text.index(index) :]  # the pages of all states are sorted together, above the scan of each
    assert ("Sort" in of_states, "Seq Scan" in text) == (False, False), text
    of_index = [line for (line,) in plan if "Index Cond" in line]
    assert index != "tasks_states" or "queue" in of_index[0], "tasks of other queues are read one by one"
