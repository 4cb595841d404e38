"""Laws of the rows of a waterfall."""

from __future__ import annotations

from tenure.domain.states import Reason, TaskState
from tenure.domain.waterfall import RowKind, waterfall, with_refused_writes
from tenure.sdk.traces import trace_of
from tests.unit.test_traces import SECOND, Writer


def taken_over() -> Writer:
    writer = Writer().claim("worker-1")
    writer.step = 1
    writer.ask().answer().call("1.0").move(TaskState.QUEUED, Reason.WORKER_LOST).claim("worker-2")
    return writer.outcome("1.0").ask(2)


def test_a_refused_write_is_shown_in_time() -> None:
    writer = taken_over()
    at_ns = writer.ledger[-1][1] - SECOND // 2
    rows = waterfall(with_refused_writes(writer.spans(), [(at_ns, "worker-1", "Commit")]))
    texts = [row.text for row in rows]
    at = texts.index("refused write worker-1 Commit")
    assert (rows[at].kind, rows[at].failed, rows[at].depth, rows[at].began_ns) == (RowKind.MOMENT, True, 1, at_ns)
    assert texts[at - 1].startswith("takeover worker-1 → worker-2")
    assert (texts[at + 1], rows[at + 1].kind, rows[at + 1].ended_ns) == ("chat sim-a", RowKind.MODEL, None)


def test_a_refused_write_belongs_to_its_attempt() -> None:
    writer = taken_over()
    writer.move(TaskState.FAILED, Reason.MODEL_REJECTED)
    between_ns = writer.ledger[-1][1] + 1
    writer.attempt = 2
    writer.move(TaskState.QUEUED, Reason.OPERATOR_REQUEUE).claim("worker-2")
    first, second = [span for span in writer.spans() if span.name.startswith("invoke_agent")]
    refused = [(between_ns, "worker-1", "Commit"), (writer.ledger[-1][1], "worker-1", "Execute")]
    marked = {span.span_id: span.events for span in with_refused_writes([first, second], refused)}
    assert [event.at_ns for event in marked[first.span_id] if "refused" in event.name] == [between_ns]
    assert [event.attributes["tenure.method"] for event in marked[second.span_id] if "refused" in event.name] == [
        "Execute"
    ]


def test_a_span_without_its_parent_begins_a_tree() -> None:
    spans = [span for span in taken_over().spans() if not span.name.startswith("invoke_agent")]
    assert {row.depth for row in waterfall(spans) if row.kind is not RowKind.MOMENT} == {0}


def test_a_trace_of_too_many_spans_has_the_oldest() -> None:
    """It says so, and its rows are those of the spans that it has."""
    spans = taken_over().spans()
    whole, part = trace_of(spans, most_spans=len(spans)), trace_of(spans, most_spans=2)
    assert (whole.more, part.more, len(part.spans)) == (False, True, 2)
    assert [span.started_at for span in part.spans] == sorted(span.started_at for span in whole.spans)[:2]
    assert {row.span_id for row in part.rows} == {span.span_id for span in part.spans}
