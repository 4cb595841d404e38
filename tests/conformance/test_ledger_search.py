"""A search of tasks: by text, cost, model and time; each page reads a bounded number of tasks."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from services.checkpoint import lists
from services.checkpoint.lists import filter_parameters
from services.checkpoint.queries import LISTS
from tenure.domain.errors import InvalidRequest
from tenure.runtime.store.postgres import BoundedConnection, send_int8
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import task_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint

QUEUED, SUCCEEDED = task_pb2.TASK_STATE_QUEUED, task_pb2.TASK_STATE_SUCCEEDED


async def pages(replica: Checkpoint, page_size: int = 0, **wanted: Any) -> list[tasks_pb.ListTasksResponse]:
    """All pages of a list."""
    request = tasks_pb.ListTasksRequest(filter=task_pb2.TaskFilter(**wanted), page_size=page_size)
    listed: list[tasks_pb.ListTasksResponse] = []
    while not listed or request.page_token:
        listed.append(await replica.stub.ListTasks(request, timeout=TIMEOUT_SECONDS))
        request.page_token = listed[-1].next_page_token
    return listed


async def ids(replica: Checkpoint, page_size: int = 0, **wanted: Any) -> list[str]:
    return [task.task_id for page in await pages(replica, page_size, **wanted) for task in page.tasks]


async def counts(replica: Checkpoint, **wanted: Any) -> dict[int, tuple[int, bool]]:
    request = tasks_pb.CountTasksRequest(filter=task_pb2.TaskFilter(**wanted))
    counted = await replica.stub.CountTasks(request, timeout=TIMEOUT_SECONDS)
    return {one.state: (one.count, one.at_least) for one in counted.counts}


async def test_a_text_is_found_in_goals_and_results(replica: Checkpoint) -> None:
    goal = (await replica.create(goal="Refund order-4010, and tell Zoë")).task_id
    owner = await replica.claim((await replica.create(goal="Close the ticket")).task_id)
    await owner.end(result="Refunded: **4010.00** for O\u0027Neill \u0000")
    function = task_pb2.ControlWork(function="shop", input_json='{"sku": "a-17"}')
    called = (await replica.create(goal="", control=function)).task_id
    ended = owner.task.task_id
    assert await ids(replica, text="REFUND") == [ended, goal]
    assert await ids(replica, text="order 4010") == [goal]
    assert await ids(replica, text="ticket neill") == [ended], "the words of the goal and the result together"
    assert await ids(replica, text="zoë") == [goal]
    assert await ids(replica, text="17") == [called]
    assert await ids(replica, text="40") == [], "a word of two characters is a whole word"
    assert await ids(replica, text="refund", states=[QUEUED]) == [goal]
    assert await counts(replica, text="refund") == {QUEUED: (1, False), SUCCEEDED: (1, False)}
    async with replica.of_tenant(f"{replica.tenant}-other") as other:
        assert await ids(other, text="refund") == []


async def test_a_prefix_finds_the_ids_that_begin_so(replica: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [(await replica.create()).task_id for _ in range(2)]
    assert await ids(replica, task_id_prefix=first.replace("-", "").upper()) == [first]
    assert await ids(replica, task_id_prefix=first[:30]) == [first], "the last six characters are random"
    shared = first[: next(n for n, (one, other) in enumerate(zip(first, second, strict=True)) if one != other)]
    assert await ids(replica, task_id_prefix=shared, page_size=1) == [second, first]
    assert await ids(replica, task_id_prefix="01a2ffff") == []
    async with replica.of_tenant(f"{replica.tenant}-other") as other:
        assert await ids(other, task_id_prefix=first[:30]) == []
    monkeypatch.setattr(lists, "MOST_READ", 1)
    for prefix in (shared, "01a", "nothex"):
        with pytest.raises(InvalidRequest, match=r"filter\.task_id_prefix"):
            await ids(replica, task_id_prefix=prefix)


@pytest.mark.parametrize("text", ["---", "one two three four five six seven eight nine"])
async def test_a_text_without_words_or_with_too_many_is_refused(replica: Checkpoint, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"filter\.text"):
        await ids(replica, text=text)


async def test_cost_model_time_and_duration_select(replica: Checkpoint) -> None:
    other, dear, cheap = [await replica.create() for _ in range(3)]
    change = "update ledger.tasks set used_nano_usd = %b::text::bigint, model_name = %b where task_id = %b::text::uuid"
    await replica.query(change, "5", "small", cheap.task_id)
    await replica.query(change, "500", "large", dear.task_id)
    assert await ids(replica, min_nano_usd=5) == [cheap.task_id, dear.task_id]
    assert await ids(replica, min_nano_usd=6, max_nano_usd=500) == [dear.task_id]
    assert await ids(replica, max_nano_usd=499) == [cheap.task_id, other.task_id]
    assert await ids(replica, max_nano_usd=0) == [other.task_id], "0 is a bound"
    assert await ids(replica, model="large") == [dear.task_id]
    hour, instant = Duration(seconds=3600), Duration(nanos=1000)
    assert len(await ids(replica, min_duration=instant, max_duration=hour)) == 3
    assert await ids(replica, min_duration=hour) == await ids(replica, max_duration=instant) == []
    between: dict[str, Any] = {"created_since": dear.create_time, "created_before": cheap.create_time}
    assert await ids(replica, **between) == [dear.task_id], "since a time, and before a time"
    assert await counts(replica, min_nano_usd=6) == {QUEUED: (1, False)}
    assert await counts(replica, **between) == {QUEUED: (1, False)}
    await replica.cancel(other.task_id)
    ended_at = (await replica.get(other.task_id)).end_time
    assert await ids(replica, ended_since=ended_at) == [other.task_id]
    assert await ids(replica, ended_before=ended_at) == []


async def test_a_page_reads_no_more_than_it_may(replica: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that met its limit says up to where it searched, and the next one continues there."""
    monkeypatch.setattr(lists, "MOST_READ", 2)
    monkeypatch.setattr(lists, "MOST_FOUND", 1)
    oldest = (await replica.create(goal="refund the first")).task_id
    queued = [(await replica.create(goal="something else")).task_id for _ in range(4)]
    newest = (await replica.create(goal="refund the last")).task_id
    await replica.cancel(queued[0])
    for wanted in ({"text": "refund"}, {"text": "refund", "states": [QUEUED, task_pb2.TASK_STATE_CANCELLED]}):
        listed = await pages(replica, **wanted)
        assert [task.task_id for page in listed for task in page.tasks] == [newest, oldest]
        assert len(listed) > 2
        assert all(page.HasField("searched_until_time") == bool(page.next_page_token) for page in listed)
    assert len(await ids(replica)) == 6
    assert await ids(replica, page_size=1) == await ids(replica)


async def test_a_count_is_exact_up_to_its_limit(replica: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        await replica.create(labels={"team": "red"})
    await replica.cancel((await replica.create()).task_id)
    assert await counts(replica) == {QUEUED: (3, False), task_pb2.TASK_STATE_CANCELLED: (1, False)}
    assert await counts(replica, labels={"team": "red"}) == {QUEUED: (3, False)}
    monkeypatch.setattr(lists, "MOST_COUNTED", 2)
    assert await counts(replica, states=[QUEUED]) == {QUEUED: (2, True)}
    assert await counts(replica, labels={"team": "blue"}) == {QUEUED: (0, True)}


@pytest.mark.parametrize(
    ("statement", "index"),
    [
        (LISTS.find_words, "task_texts_words"),
        (LISTS.list_prefix, "Index Scan Backward using tasks_pkey"),
        (LISTS.count_index, "Index Only Scan using tasks_states"),
    ],
    ids=["find_words", "list_prefix", "count_index"],
)
async def test_a_search_and_a_count_read_an_index(replica: Checkpoint, statement: bytes, index: str) -> None:
    parameters = filter_parameters(replica.tenant, task_pb2.TaskFilter(text="refund", task_id_prefix="01a2")) | {
        "limit": 9,
        "most_counted": 9,
        "most_read": 9,
        "page_size": 9,
        "place": "infinity",
        "place_task_id": "00000000-0000-0000-0000-000000000000",
    }
    async with await BoundedConnection.connect(replica.dsn, autocommit=True) as postgres:
        await postgres.execute("set search_path to ledger")
        await postgres.execute("set enable_seqscan to off")  # as in the service
        send_int8(postgres)
        plan = await (await postgres.execute(b"explain " + statement, parameters)).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert index in text, text
    assert "Seq Scan" not in text, text


async def test_groups_of_a_filter_read_no_more_than_they_may(
    replica: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rare cost says that there may be more; a tree has an index of its own, in which all its tasks are found."""
    oldest = await replica.create()
    for _ in range(3):
        await replica.create()
    await replica.query("update ledger.tasks set used_nano_usd = 5 where task_id = %b::text::uuid", oldest.task_id)

    async def grouped(**wanted: Any) -> tuple[list[tuple[int, list[str]]], bool]:
        request = pb.GroupTasksRequest(filter=task_pb2.TaskFilter(**wanted))
        answer = await replica.stub.GroupTasks(request, timeout=TIMEOUT_SECONDS)
        return [(group.count, list(group.task_ids)) for group in answer.groups], answer.more

    found = ([(1, [oldest.task_id])], False)
    assert await grouped(min_nano_usd=5) == found
    monkeypatch.setattr(lists, "MAX_GROUPED", 2)
    assert await grouped(min_nano_usd=5) == ([], True)
    assert await grouped(root_task_id=oldest.task_id) == found
    assert await grouped(task_ids=[oldest.task_id]) == found
