"""Outputs of tasks at the ledger: from the intent of their call to the close-out, listed and bounded."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from services.checkpoint import lists
from services.checkpoint.lists import filter_parameters
from services.checkpoint.queries import LISTS
from tenure.domain.errors import InvalidRequest
from tenure.domain.outputs import MAX_OUTPUTS, RECORD_OUTPUT
from tenure.runtime.store.postgres import BoundedConnection, send_int8
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tenure.v1 import task_service_pb2 as tasks_pb
from tests.conformance.test_ledger_changes import now, read_changes
from tests.conformance.test_ledger_forks import fork
from tests.conformance.test_ledger_retention import prune
from tests.conformance.test_ledger_sources import listed as listed_tasks
from tests.support.fix_checkpoint import TIMEOUT_SECONDS, Checkpoint, MakeCheckpoint, Owner, answer, entry, reserve

DIGEST = "sha256:" + "0" * 64
SUCCEEDED = task_pb2.TASK_STATE_SUCCEEDED
VERIFIED = tool_pb2.OUTPUT_STATE_VERIFIED


def intent(call_id: str, tool: str = RECORD_OUTPUT) -> ledger_pb2.NewEntry:
    step = int(call_id.split(".", maxsplit=1)[0])
    return entry(step, tool_intent=ledger_pb2.ToolIntent(call_id=call_id, tool_use_id=call_id, tool=tool))


def output(kind: str = "report", uri: str = "workspace:a.md", **more: Any) -> tool_pb2.TaskOutput:
    state = tool_pb2.OUTPUT_STATE_RECORDED if uri.startswith("workspace:") else tool_pb2.OUTPUT_STATE_STATED
    return tool_pb2.TaskOutput(**{"kind": kind, "uri": uri, "state": state, **more})


def outcome(call_id: str, recorded: Any = None, status: Any = tool_pb2.OUTCOME_STATUS_SUCCEEDED) -> Any:
    done = tool_pb2.Outcome(status=status, content="…", output=recorded)
    step = int(call_id.split(".", maxsplit=1)[0])
    return entry(step, tool_outcome=ledger_pb2.ToolOutcome(call_id=call_id, outcome=done))


async def recording(replica: Checkpoint, *outputs: tool_pb2.TaskOutput, **spec: Any) -> Owner:
    """An owner whose task has recorded these, one call each."""
    owner = await replica.claim((await replica.create(**spec)).task_id)
    await owner.commit(reserve=reserve())
    calls = [f"1.{index}" for index in range(len(outputs))]
    await owner.commit(answer(), *map(intent, calls))
    if outputs:
        await owner.commit(*(outcome(call_id, one) for call_id, one in zip(calls, outputs, strict=True)))
    return owner


def success(*outputs: tool_pb2.TaskOutput) -> pb.Transition:
    return pb.Transition(to_state=SUCCEEDED, reason="FINAL_ANSWER", result="done", outputs=outputs)


async def listed(replica: Checkpoint, kind: str = "", uri_prefix: str = "", **wanted: Any) -> list[str]:
    wanted_output = task_pb2.OutputFilter(kind=kind, uri_prefix=uri_prefix)
    return await listed_tasks(replica, page_size=1, output=wanted_output, **wanted)


async def test_an_outcomes_output_is_listed_in_the_order_of_calls(replica: Checkpoint) -> None:
    outputs = [output(uri=f"workspace:{number}.md", digest=DIGEST, size_bytes=number) for number in range(12)]
    owner = await recording(replica, *outputs)
    task = await replica.get(owner.task.task_id)
    assert [one.uri for one in task.outputs] == [one.uri for one in outputs]
    assert [one.call_id for one in task.outputs] == [f"1.{index}" for index in range(12)]
    assert {one.state for one in task.outputs} == {tool_pb2.OUTPUT_STATE_RECORDED}


async def test_an_open_or_failed_call_has_no_output(replica: Checkpoint) -> None:
    owner = await replica.claim((await replica.create()).task_id)
    await owner.commit(reserve=reserve())
    await owner.commit(answer(), intent("1.0"), intent("1.1"), intent("1.2", "another_tool"))
    assert not (await replica.get(owner.task.task_id)).outputs
    failed = outcome("1.0", output(), tool_pb2.OUTCOME_STATUS_FAILED)
    await owner.commit(failed, outcome("1.1"), outcome("1.2", output()))
    assert not (await replica.get(owner.task.task_id)).outputs


async def test_the_close_out_records_the_checked_outputs(replica: Checkpoint) -> None:
    recorded = output(digest=DIGEST, size_bytes=3)
    owner = await recording(replica, recorded, output("pull_request", "https://example.org/1"))
    checked = output(digest=DIGEST, size_bytes=3, state=VERIFIED, call_id="1.0")
    other_uri = output(uri="workspace:other.md", state=VERIFIED, call_id="1.1")
    of_no_call = output(state=VERIFIED, call_id="7.0")
    end = owner.request(transition=success(checked, other_uri, of_no_call))
    await owner.send(end)
    await owner.send(end)  # a repeat
    task = await replica.get(owner.task.task_id)
    assert [one.state for one in task.outputs] == [VERIFIED, tool_pb2.OUTPUT_STATE_STATED]
    assert task.outputs[1].uri == "https://example.org/1"
    transition = (await replica.entries(task.task_id))[-1].body.transition
    assert list(transition.outputs) == [checked, other_uri, of_no_call]


async def test_a_cancelled_task_keeps_its_outputs(replica: Checkpoint) -> None:
    owner = await recording(replica, output(digest=DIGEST))
    await replica.cancel(owner.task.task_id)
    await owner.commit(transition=success(output(state=VERIFIED, call_id="1.0")))
    task = await replica.get(owner.task.task_id)
    assert task.state == task_pb2.TASK_STATE_CANCELLED
    assert [one.state for one in task.outputs] == [tool_pb2.OUTPUT_STATE_RECORDED]


async def test_one_call_too_many_is_refused_as_its_outcome(replica: Checkpoint) -> None:
    owner = await recording(replica, *[output()] * (MAX_OUTPUTS - 1))
    response = await owner.commit(intent("2.0"), intent("2.1"))
    [refused] = [one.body.tool_outcome for one in response.foreign_entries]
    assert (refused.call_id, refused.outcome.status) == ("2.1", tool_pb2.OUTCOME_STATUS_FAILED)
    assert f"at most {MAX_OUTPUTS} calls" in refused.outcome.content
    await owner.commit(outcome("2.0", output()))
    assert len((await replica.get(owner.task.task_id)).outputs) == MAX_OUTPUTS


@pytest.mark.parametrize(
    "bad", [output("a b"), output(uri="a b"), output(digest="x"), output(size_bytes=-1), output(description="\0")]
)
async def test_an_invalid_filter_of_outputs_is_refused(replica: Checkpoint, bad: Any) -> None:
    owner = await recording(replica)
    await owner.commit(intent("1.0"))
    with pytest.raises(InvalidRequest, match="output"):
        await owner.commit(outcome("1.0", bad))
    await owner.commit(outcome("1.0", output()))
    bad.call_id = "1.0"
    with pytest.raises(InvalidRequest, match="outputs"):
        await owner.commit(transition=success(bad))


async def test_outputs_belong_to_a_success(replica: Checkpoint) -> None:
    owner = await recording(replica, output())
    failed = pb.Transition(to_state=task_pb2.TASK_STATE_FAILED, reason="X", outputs=[output(call_id="1.0")])
    with pytest.raises(InvalidRequest, match="SUCCEEDED"):
        await owner.commit(transition=failed)


async def test_tasks_are_listed_by_kind_and_uri(replica: Checkpoint) -> None:
    report = (await recording(replica, output(), output(uri="workspace:b.md"))).task.task_id
    pull = (await recording(replica, output("pull", "https://a.example/1"), output(), queue="q")).task.task_id
    await recording(replica)
    assert await listed(replica, "report") == [pull, report]
    assert await listed(replica, "pull") == [pull]
    assert await listed(replica, uri_prefix="workspace:") == [pull, report]
    assert await listed(replica, uri_prefix="https://a.example/") == [pull]
    assert await listed(replica, "report", "https://") == []  # one output must match both
    assert await listed(replica, "report", "workspace:b") == [report]
    assert await listed(replica, "report", queue="q") == [pull]
    assert await listed(replica, "report", source=task_pb2.SourceFilter(kind=task_pb2.SOURCE_KIND_CONTROL)) == []
    with pytest.raises(InvalidRequest, match="uri_prefix"):
        await listed(replica)


async def test_the_change_feed_is_filtered_by_outputs(replica: Checkpoint) -> None:
    cursor = await now(replica)
    await (await recording(replica)).end()
    await (await recording(replica, output())).end()
    wanted = task_pb2.OutputFilter(kind="report")
    items = await read_changes(replica, cursor, 1, output=wanted, states=[SUCCEEDED])
    assert [one.uri for one in items[0].change.task.outputs] == ["workspace:a.md"]


async def test_a_fork_lists_only_its_own(replica: Checkpoint) -> None:
    owner = await recording(replica, output())
    await owner.end()
    forked = await fork(replica, owner.task.task_id, message="Again?")
    assert not forked.outputs
    assert await listed(replica, "report", forked_from_task_id=owner.task.task_id) == []


async def test_pruning_deletes_the_outputs(checkpoint: MakeCheckpoint) -> None:
    replica = await checkpoint()
    await (await recording(replica, output())).end()
    assert await prune(replica) == 1
    assert await replica.query("select count(*) from ledger.task_outputs where tenant = %s", replica.tenant) == [(0,)]


async def test_sql_cannot_change_an_output(replica: Checkpoint) -> None:
    await recording(replica, output())
    with pytest.raises(psycopg.errors.CheckViolation):
        await replica.query("update ledger.task_outputs set uri = 'https://elsewhere.example'")


@pytest.mark.parametrize("wanted", [{"kind": "report"}, {"uri_prefix": "workspace:a"}])
async def test_a_page_by_output_reads_no_more_than_it_may(
    replica: Checkpoint, monkeypatch: pytest.MonkeyPatch, wanted: Any
) -> None:
    oldest = (await recording(replica, output(), labels={"team": "a"})).task.task_id
    await recording(replica, output(), output())
    request = tasks_pb.ListTasksRequest(
        filter=task_pb2.TaskFilter(output=task_pb2.OutputFilter(**wanted), labels={"team": "a"})
    )
    monkeypatch.setattr(lists, "MOST_READ", 1)
    first = await replica.stub.ListTasks(request, timeout=TIMEOUT_SECONDS)
    assert (list(first.tasks), first.HasField("searched_until_time")) == ([], True)
    request.page_token = first.next_page_token
    second = await replica.stub.ListTasks(request, timeout=TIMEOUT_SECONDS)
    assert [task.task_id for task in second.tasks] == [oldest]


@pytest.mark.parametrize(
    ("statement", "index", "sorts"),
    [(LISTS.list_output_kind, "task_outputs_kind", False), (LISTS.list_output_uri, "task_outputs_uri", True)],
    ids=["kind", "uri"],
)
async def test_lists_by_output_use_their_index(replica: Checkpoint, statement: Any, index: str, sorts: bool) -> None:
    parameters = {
        "tenant": replica.tenant,
        "place": "infinity",
        "place_task_id": "ffffffff-ffff-ffff-ffff-ffffffffffff",
        "page_size": 10,
        "most_read": 100,
        **filter_parameters(replica.tenant, task_pb2.TaskFilter()),
        "output_kind": "report",
        "output_from": "workspace:",
        "output_until": "workspace:\U0010ffff",
    }
    async with await BoundedConnection.connect(replica.dsn, autocommit=True) as postgres:
        await postgres.execute("set search_path to ledger")
        await postgres.execute("set enable_seqscan to off")  # as in the service
        send_int8(postgres)
        plan = await (await postgres.execute(b"explain " + statement, parameters)).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert index in text, text
    assert ("Sort" in text, "Seq Scan" in text) == (sorts, False), text
