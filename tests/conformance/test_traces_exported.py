"""Traces of the ledger reach a collector: at least once, each span with one id, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

import grpc
import pytest
from google.protobuf import duration_pb2
from google.rpc import error_details_pb2, status_pb2

from services.checkpoint.entries import read_page
from services.checkpoint.queries import SCHEMA
from services.checkpoint.traces import export_lease, exporting, otlp
from services.checkpoint.traces.settings import TraceSettings
from tenure.domain.retry import RetryPolicy
from tenure.domain.spans import attempt_span_id, call_span_id, trace_id
from tenure.domain.traces import TracedTask
from tenure.runtime.observability import metrics
from tenure.runtime.settings import ConfigurationError, Secret, load
from tenure.runtime.store.postgres import open_pool
from tenure.v1 import admin_service_pb2 as admin_pb
from tenure.v1 import checkpoint_service_pb2 as pb
from tenure.v1 import ledger_pb2, task_pb2, tool_pb2
from tests.support.fix_checkpoint import (
    Checkpoint,
    MakeCheckpoint,
    MakeCheckpointProcess,
    Owner,
    answer,
    entry,
    reserve,
)
from tests.support.fix_collector import Collector, ExportedSpan
from tests.support.patience import CALL_SECONDS, PATIENCE_SECONDS
from tests.support.sweeps import first

HEADER = f"00-{'a' * 32}-{'b' * 16}-01"


def settings_of(collector: Collector, **fields: object) -> TraceSettings:
    return TraceSettings(all_endpoint=f"http://{collector.address}", **fields)  # type: ignore[arg-type]


def intent(call_id: str, step: int = 1) -> ledger_pb2.NewEntry:
    call = ledger_pb2.ToolIntent(
        call_id=call_id, tool_use_id=f"use-{call_id}", tool="mail", arguments_json='{"a":"hush"}'
    )
    return entry(step, tool_intent=call)


def outcome(call_id: str, step: int = 1) -> ledger_pb2.NewEntry:
    result = tool_pb2.Outcome(status=tool_pb2.OUTCOME_STATUS_SUCCEEDED, content="hush hush", call_attempt=1)
    return entry(step, tool_outcome=ledger_pb2.ToolOutcome(call_id=call_id, outcome=result))


async def take_step(owner: Owner, step: int) -> None:
    """A model call with one tool call."""
    await owner.commit(reserve=reserve(step))
    await owner.commit(answer(1, step, text="hush"), intent(f"{step}.0", step))
    await owner.commit(outcome(f"{step}.0", step))


def spans_of(collector: Collector, task_id: str) -> list[ExportedSpan]:
    return [span for span in collector.by_id.values() if span.attributes.get("tenure.task.id") == task_id]


def named(spans: Iterable[ExportedSpan], name: str) -> list[ExportedSpan]:
    return [span for span in spans if span.name == name]


async def ended(collector: Collector, task_id: str) -> list[ExportedSpan]:
    """The spans of a task that has ended, when they are complete: its own span comes last."""
    await collector.until(lambda: bool(named(spans_of(collector, task_id), "invoke_agent messages")))
    return spans_of(collector, task_id)


async def test_spans_come_while_the_task_runs_and_once_complete(
    checkpoint: MakeCheckpoint, collector: Collector
) -> None:
    ledger = await checkpoint(traces=settings_of(collector))
    request = pb.CreateTaskRequest(request_id="r", spec=task_pb2.TaskSpec(goal="hush"), traceparent=HEADER)
    task_id = (await ledger.stub.CreateTask(request, timeout=CALL_SECONDS)).task.task_id
    owner = await ledger.claim(task_id)
    await take_step(owner, 1)
    await collector.until(lambda: bool(named(spans_of(collector, task_id), "execute_tool mail")))
    await ledger.requeue(owner, "WORKER_LOST")
    second = await ledger.claim(task_id, "worker-2")
    await take_step(second, 2)
    await second.end()
    spans = await ended(collector, task_id)
    assert sorted(span.name for span in spans) == [
        *["chat m"] * 2,
        *["execute_tool mail"] * 2,
        "invoke_agent messages",
        *["queued"] * 2,
    ]
    assert {span.trace_id.hex() for span in spans} == {trace_id(task_id)}
    [agent] = named(spans, "invoke_agent messages")
    assert agent.span_id.hex() == attempt_span_id(task_id, 1)
    assert agent.links == {(b"\xaa" * 16, b"\xbb" * 8)}
    assert agent.events == ("tenure.claim", "tenure.takeover")
    assert {span.parent_id for span in spans} == {agent.span_id, b""}
    assert call_span_id(task_id, "1.0") in {span.span_id.hex() for span in spans}
    assert b"hush" not in collector.received
    assert {span.service for span in spans} == {"tenure"}


async def test_content_is_redacted_or_left_out(checkpoint: MakeCheckpoint, collector: Collector) -> None:
    redact = f"{__name__}:hide_hush"
    ledger = await checkpoint(traces=settings_of(collector, content=True, redact=redact))
    task_id = (await ledger.create(goal="hush now")).task_id
    owner = await ledger.claim(task_id)
    await take_step(owner, 1)
    await owner.end(result="done")
    spans = await ended(collector, task_id)
    [call], [agent] = named(spans, "execute_tool mail"), named(spans, "invoke_agent messages")
    assert call.attributes["gen_ai.tool.call.arguments"] == '{"a":"…"}'
    assert call.attributes["gen_ai.tool.call.result"] == "[left out: the redaction failed]"
    assert "… now" in agent.attributes["gen_ai.input.messages"]
    assert b"hush" not in collector.received


def hide_hush(name: str, text: str) -> str:
    """Fails for results of tools."""
    if name.endswith("result"):
        raise ValueError(text)
    return text.replace("hush", "…")


@pytest.mark.parametrize("redact", ["nowhere", "no.such.module:f", "json:no_such", "json:__name__"])
def test_unknown_redaction_is_refused(redact: str) -> None:
    environment = {"TENURE_CHECKPOINT_TRACES_CONTENT": "true", "TENURE_CHECKPOINT_TRACES_REDACT": redact}
    with pytest.raises(ConfigurationError, match="REDACT"):
        load(TraceSettings, environment, prefix="TENURE_CHECKPOINT_TRACES_")


def test_a_redaction_without_content_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs TENURE_CHECKPOINT_TRACES_CONTENT"):
        load(TraceSettings, {"TENURE_CHECKPOINT_TRACES_REDACT": "json:dumps"}, prefix="TENURE_CHECKPOINT_TRACES_")


async def test_unreachable_collector_loses_no_span(
    checkpoint: MakeCheckpoint, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "SPANS_A_BATCH", 3)
    collector.is_refusing = True
    ledger = await checkpoint(traces=settings_of(collector))
    tasks = [await worked_off(ledger, 3) for _ in range(3)]
    await collector.until(lambda: collector.refused > 0)
    # An export between two steps notes that a task was created: that has no span yet.
    assert await ledger.query("select from ledger.traced_tasks where sequence > 2") == []
    assert collector.spans == []
    collector.is_refusing = False
    for task_id in tasks:
        spans = await ended(collector, task_id)
        assert (len(named(spans, "chat m")), len(named(spans, "execute_tool mail"))) == (3, 3)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await ledger.query("select from ledger.traced_tasks where is_due"):
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("status", first([grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL]))
async def test_a_span_that_the_collector_refuses_is_left_out(
    checkpoint: MakeCheckpoint, collector: Collector, monkeypatch: pytest.MonkeyPatch, status: grpc.StatusCode
) -> None:
    """All others arrive, those of the same batch, too."""
    monkeypatch.setattr(exporting, "AGAIN", RetryPolicy(initial_seconds=0.01, factor=1.0, cap_seconds=0.01))
    doomed = "2.0"
    collector.refuses_spans = lambda spans: (
        status if any(span.attributes.get("tenure.call.id") == doomed for span in spans) else None
    )
    ledger = await checkpoint(traces=settings_of(collector))
    left_out = metrics.cell("tenure_trace_spans_left_out_total").value
    spans = await ended(collector, await worked_off(ledger, 3))
    assert (len(named(spans, "chat m")), len(named(spans, "execute_tool mail"))) == (3, 2)
    assert metrics.cell("tenure_trace_spans_left_out_total").value == left_out + 1
    assert len(await ended(collector, await worked_off(ledger, 1))) == 4


async def test_retry_after_of_a_collector_loses_no_span(
    checkpoint: MakeCheckpoint, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is over its rate: OTLP says so by RESOURCE_EXHAUSTED with a RetryInfo."""
    monkeypatch.setattr(exporting, "AGAIN", RetryPolicy(initial_seconds=0.01, factor=1.0, cap_seconds=0.01))
    monkeypatch.setattr(otlp, "EXPORT_TIMEOUT_SECONDS", 1)  # the library tries again within it
    details = status_pb2.Status(code=grpc.StatusCode.RESOURCE_EXHAUSTED.value[0], message="not these")
    details.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=duration_pb2.Duration(seconds=1)))
    collector.refused_with = (("grpc-status-details-bin", details.SerializeToString()),)
    collector.refuses_spans = lambda _spans: grpc.StatusCode.RESOURCE_EXHAUSTED
    ledger = await checkpoint(traces=settings_of(collector))
    left_out = metrics.cell("tenure_trace_spans_left_out_total").value
    task_id = await worked_off(ledger, 1)
    await collector.until(lambda: collector.refused >= 12)
    collector.refuses_spans = lambda _spans: None
    assert len(await ended(collector, task_id)) == 4
    assert metrics.cell("tenure_trace_spans_left_out_total").value == left_out


async def test_changes_while_an_export_waits_keep_the_task_due(checkpoint: MakeCheckpoint) -> None:
    """The collector was away, and meanwhile the task went on and ended: no later change makes it due."""
    ledger = await checkpoint()
    async with open_pool(Secret(ledger.dsn), service="test", schema=SCHEMA) as pool:
        exporting_now = await export_lease.take_lease(pool, "test")
        assert exporting_now is not None
        task_id = (await ledger.create()).task_id
        await none_is_held_back(ledger)
        await exporting_now.read_changes()
        [due] = await exporting_now.due(export_lease.NO_TASK, 10)
        await (await ledger.claim(task_id)).end()
        await none_is_held_back(ledger)
        await exporting_now.read_changes()
        await exporting_now.note({task_id: export_lease.Exported(due.sequence, is_due=False)})
        [again] = await exporting_now.due(export_lease.NO_TASK, 10)
        assert (again.exported, again.is_held) == (due.sequence, False)
        await exporting_now.note({task_id: export_lease.Exported(again.sequence, is_due=False)})
        assert await exporting_now.due(export_lease.NO_TASK, 10) == []


async def none_is_held_back(ledger: Checkpoint) -> None:
    """Returns when no older transaction of any database runs: a change that is later than such a one is not read."""
    held_back = "select from ledger.changes where xid >= pg_snapshot_xmin(pg_current_snapshot())"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await ledger.query(held_back):
            await asyncio.sleep(0.02)


async def test_row_lease_is_kept_while_an_export_is_read(
    checkpoint: MakeCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A replica that begins with long tasks reads them again, longer than a lease: it must come up for air."""
    ledger = await checkpoint()
    task_id = await worked_off(ledger, 3)
    last = len(await ledger.entries(task_id))
    monkeypatch.setattr(exporting, "read_page", partial(read_page, page_size=1))
    async with open_pool(Secret(ledger.dsn), service="test", schema=SCHEMA) as pool:
        projections = exporting.Projections(pool, with_content=False)
        due = export_lease.DueTask(TracedTask(task_id, task_id, "default"), last - 2, last, is_held=False)
        pages = [(len(spans), through) async for spans, through in projections.spans(due)]
    assert [through for _, through in pages] == [*[last - 2] * (last - 2), last - 1, last]
    assert not any(spans for spans, _ in pages[: last - 2])


async def worked_off(ledger: Checkpoint, steps: int) -> str:
    """A task that has ended after some steps."""
    task_id = (await ledger.create()).task_id
    owner = await ledger.claim(task_id)
    for step in range(1, steps + 1):
        await take_step(owner, step)
    await owner.end()
    return task_id


@pytest.mark.faults
async def test_replica_killed_within_an_export_loses_no_span(
    checkpoint_process: MakeCheckpointProcess, collector: Collector
) -> None:
    doomed = await checkpoint_process(environment=collector.environment)
    killed = asyncio.Event()

    async def kill() -> None:
        if not killed.is_set():
            killed.set()
            doomed.process.kill()
            await doomed.wait_until_dead()

    collector.is_refusing = True  # until the task has ended: its last commit has a replica that lives
    started = await worked_off(doomed.replica, 2)
    collector.on_export, collector.is_refusing = kill, False
    await asyncio.wait_for(killed.wait(), PATIENCE_SECONDS)
    other = await checkpoint_process(dsn=doomed.replica.dsn, environment=collector.environment)
    later = await worked_off(other.replica, 2)
    for task_id in (started, later):
        spans = await ended(collector, task_id)
        assert (len(named(spans, "chat m")), len(named(spans, "execute_tool mail"))) == (2, 2)


async def test_one_of_several_replicas_exports(checkpoint: MakeCheckpoint, collector: Collector) -> None:
    first = await checkpoint(traces=settings_of(collector))
    await ended(collector, await worked_off(first, 1))
    await checkpoint(traces=settings_of(collector), dsn=first.dsn)
    await ended(collector, await worked_off(first, 1))
    assert len(collector.spans) == len(collector.by_id)
    assert await first.query("select lease_number from ledger.trace_feed") == [(1,)]


async def test_changes_that_were_pruned_are_noted(checkpoint: MakeCheckpoint, collector: Collector) -> None:
    """No replica exported for longer than changes are kept. Later changes are exported as ever."""
    first = await checkpoint(traces=settings_of(collector))
    await ended(collector, await worked_off(first, 1))
    await first.query(
        "update ledger.trace_feed set xid = '1', leased_until = '-infinity', lease_number = lease_number + 1"
    )
    await first.query("update ledger.change_feed set pruned_xid = '3'")
    second = await checkpoint(traces=settings_of(collector), dsn=first.dsn)
    await ended(collector, await worked_off(second, 1))


async def test_traces_of_pruned_tasks_are_forgotten(checkpoint: MakeCheckpoint, collector: Collector) -> None:
    ledger = await checkpoint(traces=settings_of(collector))
    task_id = await worked_off(ledger, 1)
    await ended(collector, task_id)
    request = admin_pb.PruneTasksRequest(task_id=task_id, actor="operator", reason="disk")
    await ledger.stub.PruneTasks(request, timeout=CALL_SECONDS)
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await ledger.query("select from ledger.traced_tasks"):
            await asyncio.sleep(0.1)


async def test_lost_row_lease_refuses_writes(checkpoint: MakeCheckpoint, collector: Collector) -> None:
    ledger = await checkpoint(traces=settings_of(collector))
    task_id = await worked_off(ledger, 1)
    await ended(collector, task_id)
    async with open_pool(Secret(ledger.dsn), service="test", schema=SCHEMA) as pool:
        stale = export_lease.ExportLease(pool, 0)
        await stale.note({task_id: export_lease.Exported(1, is_due=True)})
        assert stale.is_lost()
    assert await ledger.query("select from ledger.traced_tasks where sequence = 1") == []
